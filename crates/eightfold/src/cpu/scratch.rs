//! Working memory that a thread keeps between calls. Its size depends on the tiles and the head, never on the
//! number of keys.

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// A buffer of plain numbers whose used part starts on a cache line.
#[derive(Default)]
pub(super) struct Buffer<T> {
    storage: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Buffer<T> {
    /// At least `len` elements, with whatever an earlier use left in them.
    pub(super) fn get(&mut self, len: usize) -> &mut [T] {
        let spare = LINE_BYTES / size_of::<T>();
        if self.storage.len() < len + spare {
            self.storage = vec![T::default(); len + spare];
        }
        self.start = self.storage.as_ptr().align_offset(LINE_BYTES).min(spare);
        self.len = len;
        self.used_mut()
    }

    /// What the last `get` handed out.
    pub(super) fn used(&self) -> &[T] {
        &self.storage[self.start..self.start + self.len]
    }

    /// What the last `get` handed out.
    pub(super) fn used_mut(&mut self) -> &mut [T] {
        &mut self.storage[self.start..self.start + self.len]
    }

    /// The bytes that the buffer holds on to.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.storage.capacity() * size_of::<T>()
    }
}
