//! Memory for codes that begins where a cache line does.

use std::ops::{Deref, DerefMut};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Codes of which the first begins a cache line, in a copy as well.
///
/// A large `Vec` begins 16 bytes behind one, where a row of 128 codes touches three lines instead of two.
#[derive(Debug)]
pub struct AlignedCodes {
    /// The codes, with room to spare before and behind them.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedCodes {
    /// So many times this code.
    pub fn new(code: u8, len: usize) -> Self {
        let bytes = vec![code; len + LINE - 1];
        let start = bytes.as_ptr().align_offset(LINE).min(LINE - 1);
        AlignedCodes { bytes, start, len }
    }
}

impl Clone for AlignedCodes {
    fn clone(&self) -> Self {
        // The copy's memory begins elsewhere in a line.
        let mut copy = AlignedCodes::new(0, self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl Deref for AlignedCodes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for AlignedCodes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_code_begins_a_line_and_in_a_copy_too() {
        for len in [0, 1, 63, 64, 65, 1000, 1 << 20] {
            let mut codes = AlignedCodes::new(7, len);
            assert!(codes.len() == len && codes.iter().all(|code| *code == 7));
            codes.iter_mut().enumerate().for_each(|(index, code)| *code = index as u8);
            // Their memory begins at different places of a line, if any does.
            let copies: Vec<AlignedCodes> = (0..4).map(|_| codes.clone()).collect();
            for one in copies.iter().chain([&codes]) {
                assert_eq!(one.as_ptr().align_offset(LINE), 0);
                assert_eq!(one[..], codes[..]);
            }
        }
    }
}
