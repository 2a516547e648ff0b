//! Putting and taking little-endian fields.

use super::FormatError;

/// Takes fields off the front of bytes from a disk; never panics.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(super) fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], FormatError> {
        let (taken, rest) =
            self.rest.split_first_chunk().ok_or(FormatError::Truncated(self.what))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn slice(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let taken = self.rest.split_at_checked(len).ok_or(FormatError::Truncated(self.what))?;
        self.rest = taken.1;
        Ok(taken.0)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn impossible(&self, field: &'static str) -> FormatError {
        FormatError::Impossible { what: self.what, field }
    }

    /// Ends the reading: bytes left over mean another format than the one just read.
    pub(super) fn finish(self) -> Result<(), FormatError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.impossible("length")) }
    }
}

/// Takes fields at its end.
pub(super) trait Put {
    fn put_bytes(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put_bytes(&[value]);
    }

    fn put_u16(&mut self, value: u16) {
        self.put_bytes(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.put_bytes(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put_bytes(&value.to_le_bytes());
    }
}

impl Put for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
