//! The two products of a strip of queries, in tiles: S = Q·Kᵀ for a block of keys, and O += P·V for some blocks.

use super::operations::{ROW_BYTES, TILE_BYTES, Tiles};
use super::vectors::{BLOCK, BLOCKS, STRIP};

/// The scores of a strip and a block: two by two tiles, over `steps` tiles of channels.
///
/// K is read once for each strip, and lies further away than what is read again and again: `load_once` leaves the nearest cache
/// to Q and the scores.
///
/// # Safety
///
/// As for [`Tiles`]: `queries` and `keys` hold two rows of `steps` tiles, `scores` has room for 32 rows of 32.
pub(super) unsafe fn scores<T: Tiles>(
    tiles: &mut T,
    queries: *const u8,
    keys: *const u8,
    steps: usize,
    scores: *mut u8,
) {
    const STRIDE: usize = BLOCK * size_of::<f32>();
    // SAFETY: every tile is among those that the caller promises.
    unsafe {
        tiles.zero::<0>();
        tiles.zero::<1>();
        tiles.zero::<2>();
        tiles.zero::<3>();
        for step in 0..steps {
            let (queries, keys) = (queries.add(step * TILE_BYTES), keys.add(step * TILE_BYTES));
            tiles.load::<4>(queries, ROW_BYTES);
            tiles.load_once::<6>(keys, ROW_BYTES);
            tiles.multiply::<0, 4, 6>();
            tiles.load_once::<7>(keys.add(steps * TILE_BYTES), ROW_BYTES);
            tiles.multiply::<1, 4, 7>();
            tiles.load::<5>(queries.add(steps * TILE_BYTES), ROW_BYTES);
            tiles.multiply::<2, 5, 6>();
            tiles.multiply::<3, 5, 7>();
        }
        let lower = scores.add(STRIP / 2 * STRIDE);
        tiles.store::<0>(scores, STRIDE);
        tiles.store::<1>(scores.add(ROW_BYTES), STRIDE);
        tiles.store::<2>(lower, STRIDE);
        tiles.store::<3>(lower.add(ROW_BYTES), STRIDE);
    }
}

/// What meets in O += P·V.
#[derive(Clone, Copy)]
pub(super) struct Values {
    /// Two rows of tiles of weights, [`BLOCKS`] to a row.
    pub weights: *const u8,
    /// What truncation left of them; null if nothing did.
    pub remainders: *const u8,
    /// For every 16 channels, [`BLOCKS`] tiles.
    pub values: *const u8,
    /// Blocks that count.
    pub blocks: usize,
    /// 32 rows of `width` sums.
    pub output: *mut u8,
    /// A multiple of 16.
    pub width: usize,
}

/// Adds the products of a strip's weights and the values of some blocks to its sums.
///
/// # Safety
///
/// As for [`Tiles`]: the operands hold what [`Values`] says.
pub(super) unsafe fn add_values<T: Tiles, const PRECISE: bool>(tiles: &mut T, operands: Values) {
    let columns = operands.width / 16;
    for column in (0..columns).step_by(2) {
        // SAFETY: the columns are among those that the caller promises.
        unsafe {
            if column + 1 < columns {
                add_columns::<T, PRECISE, true>(tiles, operands, column);
            } else {
                add_columns::<T, PRECISE, false>(tiles, operands, column);
            }
        }
    }
}

/// Of 16 channels, or of 32 if `TWO`.
///
/// # Safety
///
/// As for [`add_values`].
#[inline(always)]
unsafe fn add_columns<T: Tiles, const PRECISE: bool, const TWO: bool>(tiles: &mut T, operands: Values, column: usize) {
    let Values { weights, remainders, values, blocks, output, width } = operands;
    let stride = width * size_of::<f32>();
    // SAFETY: every tile is among those that the caller promises.
    unsafe {
        let upper = output.add(column * ROW_BYTES);
        let lower = upper.add(STRIP / 2 * stride);
        tiles.load::<0>(upper, stride);
        tiles.load::<2>(lower, stride);
        if TWO {
            tiles.load::<1>(upper.add(ROW_BYTES), stride);
            tiles.load::<3>(lower.add(ROW_BYTES), stride);
        }
        for block in 0..blocks {
            let values = values.add((column * BLOCKS + block) * TILE_BYTES);
            let weights = weights.add(block * TILE_BYTES);
            tiles.load::<4>(weights, ROW_BYTES);
            tiles.load_once::<6>(values, ROW_BYTES);
            tiles.multiply::<0, 4, 6>();
            if TWO {
                tiles.load_once::<7>(values.add(BLOCKS * TILE_BYTES), ROW_BYTES);
                tiles.multiply::<1, 4, 7>();
            }
            tiles.load::<5>(weights.add(BLOCKS * TILE_BYTES), ROW_BYTES);
            tiles.multiply::<2, 5, 6>();
            if TWO {
                tiles.multiply::<3, 5, 7>();
            }
            if PRECISE {
                let remainders = remainders.add(block * TILE_BYTES);
                tiles.load::<4>(remainders, ROW_BYTES);
                tiles.multiply::<0, 4, 6>();
                tiles.load::<5>(remainders.add(BLOCKS * TILE_BYTES), ROW_BYTES);
                tiles.multiply::<2, 5, 6>();
                if TWO {
                    tiles.multiply::<1, 4, 7>();
                    tiles.multiply::<3, 5, 7>();
                }
            }
        }
        tiles.store::<0>(upper, stride);
        tiles.store::<2>(lower, stride);
        if TWO {
            tiles.store::<1>(upper.add(ROW_BYTES), stride);
            tiles.store::<3>(lower.add(ROW_BYTES), stride);
        }
    }
}
