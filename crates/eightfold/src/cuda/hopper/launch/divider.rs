//! Division by a number that is known at launch, as a multiplication and a shift.

/// n / divisor = n · multiplier >> shift for every n below 2³¹; the struct of `kernels/hopper/problem.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Divider {
    multiplier: u32,
    shift: u32,
}

impl Divider {
    /// The divisor is between 1 and 2³¹.
    pub(super) fn by(divisor: u32) -> Divider {
        let divisor = u64::from(divisor.max(1));
        // Rounding the quotient up adds less than 1/divisor to the product with any n below 2³¹.
        let shift = 31 + divisor.next_power_of_two().trailing_zeros();
        Divider { multiplier: (1u64 << shift).div_ceil(divisor) as u32, shift }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quotient_is_exact() {
        let divide = |n: u32, by: Divider| ((u64::from(n) * u64::from(by.multiplier)) >> by.shift) as u32;
        let interesting = |limit: u32| {
            let powers = (0..31).flat_map(|power| [(1u32 << power).saturating_sub(1), 1 << power, (1 << power) + 1]);
            let scattered = (1u32..2000).map(|index| index.wrapping_mul(2_654_435_761) >> 1);
            powers.chain(scattered).chain(0..300).filter(move |n| *n <= limit)
        };
        for divisor in interesting(1 << 31).filter(|divisor| *divisor > 0) {
            let by = Divider::by(divisor);
            let multiples = [1u32, 2, 3, 1000].map(|times| divisor.saturating_mul(times).min(i32::MAX as u32));
            let near = multiples.into_iter().flat_map(|n| [n - 1, n]);
            for n in near.chain((0..31).map(|power| (1 << power) - 1)).chain([i32::MAX as u32]) {
                assert_eq!(divide(n, by), n / divisor, "{n} / {divisor}");
            }
        }
    }
}
