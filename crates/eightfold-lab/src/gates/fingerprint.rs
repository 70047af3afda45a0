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
        for value in tensor.scales().values().iter().chain(tensor.means().unwrap_or(&[])) {
            hash.word(u64::from(value.to_bits()));
        }
    }
    hash.finish()
}

/// A hash of an output's bits, log-sum-exp included.
pub(crate) fn of_output(output: &Output) -> u64 {
    let mut hash = Fingerprint::new();
    match &output.values {
        Values::F32(values) => values.iter().for_each(|x| hash.word(u64::from(x.to_bits()))),
        Values::F16(values) => values.iter().for_each(|x| hash.word(u64::from(x.to_bits()))),
        Values::Bf16(values) => values.iter().for_each(|x| hash.word(u64::from(x.to_bits()))),
    }
    for value in output.lse.iter().flatten() {
        hash.word(u64::from(value.to_bits()));
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::{Problem, Shape};

    #[test]
    fn one_changed_bit_changes_the_hash() {
        let problem = Problem::new(Shape::new(1, 1, 4, 8)).unwrap().with_lse(true);
        let zeros = Output::zeros(&problem);
        let mut values_changed = zeros.clone();
        values_changed.values.fill(f32::from_bits(1));
        let mut lse_changed = zeros.clone();
        lse_changed.lse.as_mut().unwrap()[3] = f32::from_bits(1);
        let hashes = [&zeros, &values_changed, &lse_changed].map(of_output);
        assert_eq!(hashes[0], of_output(&zeros.clone()));
        assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[1] != hashes[2]);
    }
}
