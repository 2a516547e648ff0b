//! Keys of the index: 1 to 32 bytes, in the order of their bytes.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
};

use super::{fields::Put, node::KEY_LEN_MAX};

/// A key. Kept inline, so that a delta of many keys is one allocation a value.
#[derive(Clone, Copy)]
pub struct Key {
    len: u8,
    bytes: [u8; KEY_LEN_MAX],
}

impl Key {
    /// A key of these bytes; `None` when there are none or more than [`KEY_LEN_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > KEY_LEN_MAX {
            return None;
        }
        let mut key = Self { len: u8::try_from(bytes.len()).ok()?, bytes: [0; KEY_LEN_MAX] };
        key.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(key)
    }

    /// A key of one byte, to which others are put.
    pub(super) fn of_table(number: u8) -> Self {
        let mut bytes = [0; KEY_LEN_MAX];
        bytes[0] = number;
        Self { len: 1, bytes }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Put for Key {
    /// # Panics
    /// When the key gets longer than [`KEY_LEN_MAX`].
    fn put_bytes(&mut self, bytes: &[u8]) {
        let start = usize::from(self.len);
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.len += u8::try_from(bytes.len()).expect("it fits");
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_bounds_and_sort_as_their_bytes_do() {
        assert!(Key::new(&[]).is_none());
        assert!(Key::new(&[0; KEY_LEN_MAX + 1]).is_none());
        let key = |bytes: &[u8]| Key::new(bytes).unwrap();
        assert!(key(&[1]) < key(&[1, 0]) && key(&[1, 0]) < key(&[2]));
        assert_eq!(format!("{:?}", key(&[0xAB, 1])), "ab01");
    }
}
