//! What a bucket tells of the bytes of a part, and what is held against it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use md5::{Digest as _, Md5};
use millrace_types::Crc32c;

use crate::{Tag, UploadedPart};

/// A part that is in the bucket, of an upload that is not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldPart {
    /// The part.
    pub part: UploadedPart,
    /// What the bucket tells of its bytes; `None` where it tells nothing.
    pub digest: Option<PartDigest>,
}

/// A digest of a part's bytes. That they are others is certain only of a CRC: what looks like an
/// MD5 may be a tag of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartDigest {
    /// The checksum with which the part was sent.
    Crc32c(Crc32c),
    /// What the entity tag of a part is on GCS, and on S3 unless it is encrypted with a key of
    /// KMS's or somebody's own.
    Md5([u8; 16]),
}

/// The MD5 of bytes that come one after the other.
#[derive(Debug, Clone, Default)]
pub struct Md5Sum(Md5);

impl HeldPart {
    /// One of which only the tag tells anything.
    pub(crate) fn tagged(part: UploadedPart) -> Self {
        Self { digest: md5_of(&part.tag).map(PartDigest::Md5), part }
    }

    /// One whose CRC32C is told in Base64.
    pub(crate) fn with_checksum(part: UploadedPart, checksum: Option<&str>) -> Self {
        match checksum.and_then(crc32c) {
            Some(checksum) => Self { part, digest: Some(PartDigest::Crc32c(checksum)) },
            None => Self::tagged(part),
        }
    }
}

impl Md5Sum {
    /// Takes what comes next.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// That of all bytes.
    #[must_use]
    pub fn finish(self) -> [u8; 16] {
        self.0.finalize().into()
    }
}

/// The MD5 that a tag looks like.
pub(crate) fn md5_of(tag: &Tag) -> Option<[u8; 16]> {
    let text = tag.as_str().strip_prefix('"')?.strip_suffix('"')?;
    if text.len() != 32 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

/// A CRC32C as it stands in Base64.
pub(crate) fn crc32c(text: &str) -> Option<Crc32c> {
    let bytes: [u8; 4] = STANDARD.decode(text).ok()?.try_into().ok()?;
    Some(Crc32c(u32::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bucket_tells_of_a_part_is_that_of_its_bytes() {
        let part = |tag: &str| UploadedPart { number: 1, tag: Tag::new(tag).unwrap(), len: 5 };
        let mut sum = Md5Sum::default();
        sum.update(b"he");
        sum.update(b"llo");
        let hello = part("\"5d41402abc4b2a76b9719d911017c592\"");
        let told = HeldPart::with_checksum(hello.clone(), None).digest;
        assert_eq!(told, Some(PartDigest::Md5(sum.finish())));
        let told = HeldPart::with_checksum(hello.clone(), Some("mnG7TA==")).digest;
        assert_eq!(told, Some(PartDigest::Crc32c(Crc32c::of(b"hello"))));
        // A checksum of checksums is none of the bytes.
        let told = HeldPart::with_checksum(hello.clone(), Some("mnG7TA==-3")).digest;
        assert_eq!(told, HeldPart::tagged(hello).digest);
        for tag in ["\"0x8DB9\"", "5d41402abc4b2a76b9719d911017c592", "\"5d41-2\""] {
            assert_eq!(HeldPart::tagged(part(tag)).digest, None, "{tag}");
        }
    }
}
