//! The portable twin of the tile instructions: what Intel documents that they do, in plain arithmetic.

use super::operations::{Configuration, ROW_BYTES, ROWS, Tiles};

/// Eight tile registers as plain memory, of the sizes of their configuration. What would fault is a panic.
#[derive(Clone)]
pub struct Twin {
    /// Rows and bytes of a row of each register, none where nothing is configured.
    sizes: [(usize, usize); 8],
    words: [[[u32; ROW_BYTES / 4]; ROWS]; 8],
}

impl Twin {
    /// Registers that are not configured.
    pub const RELEASED: Twin = Twin { sizes: [(0, 0); 8], words: [[[0; ROW_BYTES / 4]; ROWS]; 8] };

    /// Registers of their full size.
    pub(super) fn configured() -> Twin {
        let mut twin = Twin::RELEASED;
        twin.configure(&Configuration::FULL);
        twin
    }

    /// `ldtilecfg`: takes the sizes, and clears all registers.
    pub fn configure(&mut self, configuration: &Configuration) {
        *self = Twin::RELEASED;
        let bytes = &configuration.0;
        assert!(bytes[0] <= 1, "#GP: palette {} is none", bytes[0]);
        if bytes[0] == 0 {
            return;
        }
        assert!(bytes[1..16].iter().chain(&bytes[32..48]).chain(&bytes[56..]).all(|byte| *byte == 0), "#GP: reserved");
        for (tile, size) in self.sizes.iter_mut().enumerate() {
            let row_bytes = u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]);
            *size = (usize::from(bytes[48 + tile]), usize::from(row_bytes));
            assert!(size.0 <= ROWS && size.1 <= ROW_BYTES && size.1.is_multiple_of(4), "#GP: tile {tile} of {size:?}");
        }
    }

    /// `sttilecfg`.
    pub fn configuration(&self) -> Configuration {
        let mut bytes = [0; 64];
        for (tile, (rows, row_bytes)) in self.sizes.into_iter().enumerate() {
            bytes[0] |= u8::from(rows > 0);
            bytes[16 + 2 * tile] = row_bytes as u8;
            bytes[48 + tile] = rows as u8;
        }
        Configuration(bytes)
    }

    /// The rows of a register, and the words of a row.
    fn size(&self, tile: usize) -> (usize, usize) {
        let (rows, row_bytes) = self.sizes[tile];
        assert!(rows > 0 && row_bytes > 0, "#UD: tile {tile} is not configured");
        (rows, row_bytes / 4)
    }

    /// `tilezero`.
    pub fn zero(&mut self, tile: usize) {
        self.size(tile);
        self.words[tile] = [[0; ROW_BYTES / 4]; ROWS];
    }

    /// `tileloadd`.
    ///
    /// # Safety
    ///
    /// The address must be valid for as many rows and bytes as the register is configured for, `stride` bytes apart.
    pub unsafe fn load(&mut self, tile: usize, from: *const u8, stride: usize) {
        let (rows, words) = self.size(tile);
        self.words[tile] = [[0; ROW_BYTES / 4]; ROWS];
        for (row, to) in self.words[tile][..rows].iter_mut().enumerate() {
            // SAFETY: the caller promises the row.
            unsafe { std::ptr::copy_nonoverlapping(from.add(row * stride), to.as_mut_ptr().cast(), 4 * words) };
        }
    }

    /// `tilestored`.
    ///
    /// # Safety
    ///
    /// As for [`Twin::load`].
    pub unsafe fn store(&self, tile: usize, to: *mut u8, stride: usize) {
        let (rows, words) = self.size(tile);
        for (row, from) in self.words[tile][..rows].iter().enumerate() {
            // SAFETY: the caller promises the row.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.add(row * stride), 4 * words) };
        }
    }

    /// `tdpbf16ps`: even and odd products are summed apart, each by fused multiply-adds, then both are added to the sum. All of
    /// it takes denormal numbers for zero and rounds to nearest, ties to even, whatever the thread's rounding mode.
    pub fn multiply(&mut self, sum: usize, left: usize, right: usize) {
        let ((rows, columns), (left_rows, pairs), (right_rows, right_columns)) =
            (self.size(sum), self.size(left), self.size(right));
        let fit = left_rows == rows && right_rows == pairs && right_columns == columns;
        assert!(
            fit,
            "#UD: tiles of {rows}x{columns}, {left_rows}x{pairs} and {right_rows}x{right_columns} do not multiply"
        );
        let right = self.words[right].map(|row| [row.map(low), row.map(high)]);
        for row in 0..rows {
            let mut sums = [[0.0; ROW_BYTES / 4]; 2];
            for (word, right) in self.words[left][row][..pairs].iter().zip(&right) {
                for (half, factor) in [low(*word), high(*word)].into_iter().enumerate() {
                    add_products(&mut sums[half], factor, &right[half]);
                }
            }
            for (column, word) in self.words[sum][row][..columns].iter_mut().enumerate() {
                let products = flush(sums[0][column] + sums[1][column]);
                *word = flush(flush(f32::from_bits(*word)) + products).to_bits();
            }
        }
    }
}

/// Adds `factor · others` to the sums, each rounded once.
#[inline]
fn add_products(sums: &mut [f32; ROW_BYTES / 4], factor: f32, others: &[f32; ROW_BYTES / 4]) {
    let products = others.map(|other| factor * other);
    // A product of two bf16 is exact in f32, so that adding it is the fused operation, unless it leaves the normal range.
    if products.iter().all(|product| *product == 0.0 || product.is_normal()) {
        for (sum, product) in sums.iter_mut().zip(products) {
            *sum = flush(*sum + product);
        }
    } else {
        for (sum, other) in sums.iter_mut().zip(others) {
            *sum = flush(factor.mul_add(*other, *sum));
        }
    }
}

/// The first bf16 of a pair, or zero where it is denormal.
#[inline]
fn low(word: u32) -> f32 {
    flush(f32::from_bits(word << 16))
}

/// The second one.
#[inline]
fn high(word: u32) -> f32 {
    flush(f32::from_bits(word & 0xffff_0000))
}

/// Zero of the same sign for a denormal number.
#[inline]
fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0f32.copysign(value) } else { value }
}

impl Tiles for Twin {
    unsafe fn zero<const TILE: usize>(&mut self) {
        Twin::zero(self, TILE);
    }

    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller upholds the contract of `Tiles`.
        unsafe { Twin::load(self, TILE, from, stride) }
    }

    unsafe fn load_once<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: as above.
        unsafe { Twin::load(self, TILE, from, stride) }
    }

    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: as above.
        unsafe { Twin::store(self, TILE, to, stride) }
    }

    unsafe fn multiply<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        Twin::multiply(self, SUM, LEFT, RIGHT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers that were configured and hold these words in every row of one of them.
    fn twin(rows: &[(usize, u32)]) -> Twin {
        let mut twin = Twin::RELEASED;
        twin.configure(&Configuration::FULL);
        for (tile, word) in rows {
            twin.words[*tile] = [[*word; 16]; 16];
        }
        twin
    }

    fn pair(low: f32, high: f32) -> u32 {
        low.to_bits() >> 16 | high.to_bits() & 0xffff_0000
    }

    #[test]
    fn a_product_sums_over_pairs() {
        let mut twin = twin(&[(0, 10f32.to_bits()), (1, pair(2.0, 3.0)), (2, pair(5.0, -1.0))]);
        twin.multiply(0, 1, 2);
        assert!(twin.words[0].iter().flatten().all(|word| f32::from_bits(*word) == 10.0 + 16.0 * (2.0 * 5.0 - 3.0)));
    }

    #[test]
    fn even_and_odd_products_are_summed_apart_before_they_meet_the_sum() {
        // 2^24 + 1 is not an f32: alone, sixteen ones beside 2^24 are not lost.
        let mut twin = twin(&[(0, (2f32.powi(24)).to_bits()), (1, pair(1.0, 0.0)), (2, pair(1.0, 0.0))]);
        twin.multiply(0, 1, 2);
        assert_eq!(f32::from_bits(twin.words[0][3][5]), 2f32.powi(24) + 16.0);
        // In one chain the ones would be lost beside 2^24: here each pair has its own.
        let mut row = twin.clone();
        row.words[0] = [[0; 16]; 16];
        row.words[1] = [[pair(1.0, 1.0); 16]; 16];
        row.words[2] = [[pair(1.0, 0.0); 16]; 16];
        row.words[2][0] = [pair(1.0, 2f32.powi(25)); 16];
        row.multiply(0, 1, 2);
        assert_eq!(f32::from_bits(row.words[0][0][0]), 2f32.powi(25) + 16.0);
    }

    #[test]
    fn denormal_numbers_are_zero_on_the_way_in_and_out() {
        let (tiny, least) = (f32::from_bits(0x0001_0000), f32::MIN_POSITIVE);
        for (left, right, expected) in [(tiny, 2f32.powi(100), 0.0), (least, 0.5, 0.0), (least, 1.0, 16.0 * least)] {
            let mut twin = twin(&[(1, pair(left, 0.0)), (2, pair(right, 0.0))]);
            twin.multiply(0, 1, 2);
            assert_eq!(f32::from_bits(twin.words[0][0][0]), expected, "{left:e} * {right:e}");
        }
        let mut twin = twin(&[(0, 1), (1, pair(0.0, 0.0)), (2, pair(1.0, 0.0))]);
        twin.multiply(0, 1, 2);
        assert_eq!(twin.words[0][0][0], 0, "a denormal sum");
    }

    #[test]
    fn a_configuration_reads_back_and_bounds_what_is_touched() {
        let mut small = Configuration::FULL;
        (small.0[16], small.0[48]) = (8, 3);
        let mut twin = Twin::RELEASED;
        assert_eq!(twin.configuration().0, [0; 64]);
        twin.configure(&small);
        assert_eq!(twin.configuration().0, small.0);
        let (from, mut to) = ([7u8; 32], [1u8; 32]);
        // SAFETY: three rows of eight bytes, ten apart, end at byte 28.
        unsafe {
            twin.load(0, from.as_ptr(), 10);
            twin.store(0, to.as_mut_ptr(), 10);
        }
        let expected: Vec<u8> = (0..32).map(|byte| if byte < 28 && byte % 10 < 8 { 7 } else { 1 }).collect();
        assert_eq!(to[..], expected[..]);
    }

    #[test]
    fn what_faults_is_a_panic() {
        type Fault = fn(&mut Twin);
        let faults: [(&str, Fault); 4] = [
            ("not configured", |twin| {
                twin.configure(&Configuration([0; 64]));
                twin.zero(0);
            }),
            ("do not multiply", |twin| {
                let mut configuration = Configuration::FULL;
                configuration.0[48 + 2] = 4;
                twin.configure(&configuration);
                twin.multiply(0, 1, 2);
            }),
            ("palette", |twin| twin.configure(&Configuration([2; 64]))),
            ("reserved", |twin| {
                let mut configuration = Configuration::FULL;
                configuration.0[63] = 1;
                twin.configure(&configuration);
            }),
        ];
        for (expected, fault) in faults {
            let mut twin = twin(&[]);
            let panic = std::panic::catch_unwind(move || fault(&mut twin)).unwrap_err();
            let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            let message =
                if message.is_empty() { panic.downcast_ref::<&str>().unwrap_or(&"").to_string() } else { message };
            assert!(message.contains(expected), "{expected}: {message}");
        }
    }
}
