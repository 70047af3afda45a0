//! Hashes that are stored: the same on every machine and in every version of the compiler.

/// FNV-1a over bytes, 64 bits: equal machine code, intact files. Not for secrets.
pub(super) fn of_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// FNV-1a over fields, 128 bits, so that no two programs share a key by chance.
pub(super) struct Key(u128);

impl Key {
    pub(super) fn new() -> Self {
        Key(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Adds a field. Its length goes in as well: `ab` and `c` are not `a` and `bc`.
    pub(super) fn field(mut self, bytes: &[u8]) -> Self {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        self
    }

    pub(super) fn finish(self) -> u128 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_values_of_fnv_1a() {
        assert_eq!(of_bytes(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of_bytes(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of_bytes(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn where_a_field_ends_matters() {
        let key = |fields: &[&str]| fields.iter().fold(Key::new(), |key, field| key.field(field.as_bytes())).finish();
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_ne!(key(&["abc"]), key(&["abc", ""]));
        assert_eq!(key(&["abc"]), key(&["abc"]));
    }
}
