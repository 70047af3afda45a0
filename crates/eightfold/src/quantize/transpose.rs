//! Squares of codes, transposed.

/// The side of a square: two of them fit the first-level cache with room to spare.
pub(super) const TILE: usize = 64;

/// Codes of a row that are transposed at a time: as many as fit one machine word.
const STEP: usize = 8;

/// A square of codes, row after row.
pub(super) type Tile = [u8; TILE * TILE];

/// Transposes the first `rows` rows and `columns` columns of a square into columns and rows.
pub(super) fn transpose(tile: &Tile, rows: usize, columns: usize, transposed: &mut Tile) {
    for row in (0..rows).step_by(STEP) {
        for column in (0..columns).step_by(STEP) {
            let mut words = [0; STEP];
            for (i, word) in words.iter_mut().enumerate() {
                let (bytes, _) = tile[(row + i) * TILE + column..].as_chunks::<STEP>();
                *word = u64::from_le_bytes(bytes[0]);
            }
            for (i, word) in transpose_words(words).into_iter().enumerate() {
                transposed[(column + i) * TILE + row..][..STEP].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// Transposes 8 × 8 bytes by swapping ever smaller quarters: 4 × 4, 2 × 2, then single bytes.
fn transpose_words(mut words: [u64; STEP]) -> [u64; STEP] {
    for (distance, mask) in [(4, 0x0000_0000_ffff_ffff), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ff)] {
        let bits = 8 * distance;
        for first in (0..STEP).filter(|index| index & distance == 0) {
            let (upper, lower) = (words[first], words[first + distance]);
            words[first] = (upper & mask) | ((lower & mask) << bits);
            words[first + distance] = ((upper >> bits) & mask) | (lower & !mask);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_rectangle_lands_at_the_mirrored_place() {
        let tile: Tile = std::array::from_fn(|index| (index * 31 + index / 256) as u8);
        for (rows, columns) in [(64, 64), (1, 1), (64, 7), (9, 64), (13, 27)] {
            let mut transposed = [0; TILE * TILE];
            transpose(&tile, rows, columns, &mut transposed);
            for row in 0..rows {
                for column in 0..columns {
                    assert_eq!(transposed[column * TILE + row], tile[row * TILE + column]);
                }
            }
        }
    }
}
