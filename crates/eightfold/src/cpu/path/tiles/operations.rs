//! The operations on tile registers that the path is written in: those of AMX, or their portable twin.
//!
//! There are eight registers of 16 rows of 64 bytes. A product of two of them sums over pairs: row `m` of the left one holds
//! 16 pairs of bf16, row `k` of the right one holds for each of 16 columns the pair that meets pair `k`.

/// Rows of a tile register.
pub(in crate::cpu) const ROWS: usize = 16;
/// Bytes of a row: 16 numbers of f32, or 16 pairs of bf16.
pub(in crate::cpu) const ROW_BYTES: usize = 64;
/// Bytes of a tile that lies in memory as it does in a register.
pub(in crate::cpu) const TILE_BYTES: usize = ROWS * ROW_BYTES;

/// The configuration in which every operation here finds the registers: palette 1, eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
pub struct Configuration(pub [u8; 64]);

impl Configuration {
    /// All registers at their full size.
    pub const FULL: Configuration = {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            bytes[16 + 2 * tile] = ROW_BYTES as u8;
            bytes[48 + tile] = ROWS as u8;
            tile += 1;
        }
        Configuration(bytes)
    };
}

/// The operations, under the registers' full configuration. The registers of a thread are state: what one operation leaves
/// there, the next one finds.
///
/// # Safety
///
/// Addresses must be valid for 16 rows of 64 bytes that lie `stride` bytes apart. The implementor says what else must hold.
pub(super) trait Tiles {
    /// `tilezero`.
    unsafe fn zero<const TILE: usize>(&mut self);
    /// `tileloadd`.
    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize);
    /// `tileloaddt1`: the same, of what will not be read again soon and should leave the nearest cache to the rest.
    unsafe fn load_once<const TILE: usize>(&mut self, from: *const u8, stride: usize);
    /// `tilestored`.
    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize);
    /// `tdpbf16ps`: adds the products of `LEFT` and `RIGHT` to the f32 in `SUM`.
    unsafe fn multiply<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self);
}
