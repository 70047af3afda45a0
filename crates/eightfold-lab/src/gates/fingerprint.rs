//! Hashes that tell whether bits changed.

use eightfold::{Fp8Tensor, Output, Values};

/// FNV-1a over 64-bit words: not for secrets, but the same on every machine.
struct Fingerprint(u64);

impl Fingerprint {
    fn new() -> Self {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }

    fn word(&mut self, word: u64) {
        // A byte at a time would take longer than the kernels whose output is hashed. The rotation carries
        // high bits down, which the multiplication alone never does.
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }

    fn finish(self) -> u64 {
        self.0
    }
}

/// A hash of everything that a kernel reads.
pub(super) fn of_inputs(tensors: [&Fp8Tensor; 3]) -> u64 {
    let mut hash = Fingerprint::new();
    for tensor in tensors {
        for bytes in tensor.codes().chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            hash.word(u64::from_le_bytes(word));
        }
        for value in [tensor.scales().values(), tensor.means().unwrap_or(&[]), tensor.sinks().unwrap_or(&[])].concat() {
            hash.word(u64::from(value.to_bits()));
        }
    }
    hash.finish()
}

/// A hash of an output's bits, log-sum-exp included.
pub(crate) fn of_output(output: &Output) -> u64 {
    let mut hash = Fingerprint::new();
    match &output.values {
        Values::F32(values) => values.chunks(2).for_each(|some| hash.word(packed(some, |x| x.to_bits().into()))),
        Values::F16(values) => values.chunks(4).for_each(|some| hash.word(packed(some, |x| x.to_bits().into()))),
        Values::Bf16(values) => values.chunks(4).for_each(|some| hash.word(packed(some, |x| x.to_bits().into()))),
        other => other.to_f32().iter().for_each(|value| hash.word(value.to_bits().into())),
    }
    for value in output.lse.iter().flatten() {
        hash.word(u64::from(value.to_bits()));
    }
    hash.finish()
}

/// The bits of a few elements in one word.
fn packed<T>(elements: &[T], bits: impl Fn(&T) -> u64) -> u64 {
    elements.iter().fold(0, |word, element| word << (8 * size_of::<T>()) | bits(element))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::{OutputFormat, Problem, Shape};
    use half::{bf16, f16};
    use std::collections::BTreeSet;

    #[test]
    fn one_changed_bit_changes_the_hash() {
        for &format in OutputFormat::ALL {
            let problem = Problem::new(Shape::new(1, 1, 4, 8)).unwrap().with_lse(true).with_output_format(format);
            let zeros = Output::zeros(&problem);
            let mut hashes = vec![of_output(&zeros)];
            assert_eq!(hashes[0], of_output(&zeros.clone()));
            for place in 0..zeros.values.len() {
                let mut changed = zeros.clone();
                match &mut changed.values {
                    Values::F32(values) => values[place] = f32::from_bits(1),
                    Values::F16(values) => values[place] = f16::from_bits(1),
                    Values::Bf16(values) => values[place] = bf16::from_bits(1),
                    _ => unreachable!(),
                }
                hashes.push(of_output(&changed));
            }
            let mut lse_changed = zeros.clone();
            lse_changed.lse.as_mut().unwrap()[3] = f32::from_bits(1);
            hashes.push(of_output(&lse_changed));
            let different: BTreeSet<_> = hashes.iter().collect();
            assert_eq!(different.len(), hashes.len(), "{format}");
        }
    }
}
