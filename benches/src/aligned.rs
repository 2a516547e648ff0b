//! Memory as direct I/O wants it.

/// Bytes that begin on a page.
#[derive(Debug)]
pub struct Aligned {
    memory: Vec<u8>,
    len: usize,
}

impl Aligned {
    /// `len` bytes that are not zero.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { memory: vec![5; len + PAGE], len }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let start = self.memory.as_ptr().align_offset(PAGE);
        &mut self.memory[start..][..self.len]
    }
}

/// Bytes of a page.
pub const PAGE: usize = 4096;
