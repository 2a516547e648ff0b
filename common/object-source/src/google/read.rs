//! HEAD, ranges and whole objects, each of one generation.

use std::ops::Range;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, Method, header};
use millrace_types::Crc32c;

use super::{
    Google,
    answer::{GENERATION, generation, is_generation},
};
use crate::{
    Error, Head, Metadata, ObjectVersion, Tag, listing::header_time, temporary::is_temporary,
    web::Ask,
};

/// What the headers of user metadata begin with.
pub(super) const METADATA: &str = "x-goog-meta-";
/// The condition on a generation.
pub(super) const IF_GENERATION: &str = "x-goog-if-generation-match";
/// Bytes as they are stored, whatever is done to them on the way.
const STORED_LEN: &str = "x-goog-stored-content-length";
const HASH: &str = "x-goog-hash";

impl Google {
    pub(crate) async fn head(&self, key: &str) -> Result<Head, Error> {
        if is_temporary(key) {
            return Err(Error::NotFound { key: key.to_owned() });
        }
        self.head_any(key).await
    }

    /// As [`Self::head`], of temporary objects too.
    pub(super) async fn head_any(&self, key: &str) -> Result<Head, Error> {
        let (headers, _) = self.web.send(&self.ask(Method::HEAD, key, &[])).await?;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let size = text(STORED_LEN).or_else(|| text(header::CONTENT_LENGTH.as_str()));
        let size = size.and_then(|size| size.parse().ok());
        let version = ObjectVersion {
            tag: generation(&headers)?,
            size: size.ok_or_else(|| Error::unavailable("the bucket tells no size"))?,
            modified: header_time(text(header::LAST_MODIFIED.as_str()).unwrap_or_default()),
        };
        Ok(Head { version, metadata: metadata_of(&headers) })
    }

    pub(crate) async fn head_directory(&self, prefix: &str) -> Result<Metadata, Error> {
        let (headers, _) = self.web.send(&self.ask(Method::HEAD, prefix, &[])).await?;
        Ok(metadata_of(&headers))
    }

    pub(crate) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        tag: &Tag,
    ) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
        let ask = self.get(key, tag)?;
        let tag = tag.clone();
        self.web.get_range(ask, range, move |headers| is_of(headers, &tag)).await
    }

    /// All bytes of an object, checked against its CRC32C.
    pub(crate) async fn get_whole(&self, key: &str, size: u64, tag: &Tag) -> Result<Bytes, Error> {
        let checked = |headers: &HeaderMap, bytes: &Bytes| {
            if !is_of(headers, tag) {
                return Err(Error::Changed { key: key.to_owned() });
            }
            let len = bytes.len() as u64;
            if len != size {
                return Err(Error::unavailable(format!(
                    "the bucket sends {len} bytes of {key:?}, which has {size}"
                )));
            }
            match crc32c_of(headers) {
                Some(told) if told != Crc32c::of(bytes) => Err(Error::unavailable(format!(
                    "the bytes of {key:?} arrived damaged: they have another checksum"
                ))),
                _ => Ok(()),
            }
        };
        self.web.send_checked(&self.get(key, tag)?, checked).await
    }

    fn get(&self, key: &str, tag: &Tag) -> Result<Ask, Error> {
        self.ask(Method::GET, key, &[]).with(IF_GENERATION, known(key, tag)?)
    }
}

/// A tag as a generation. Any other text is no version of an object of GCS.
pub(super) fn known<'t>(key: &str, tag: &'t Tag) -> Result<&'t str, Error> {
    if is_generation(tag.as_str()) {
        Ok(tag.as_str())
    } else {
        Err(Error::Changed { key: key.to_owned() })
    }
}

fn is_of(headers: &HeaderMap, tag: &Tag) -> bool {
    headers.get(GENERATION).is_some_and(|told| told.as_bytes() == tag.as_str().as_bytes())
}

fn metadata_of(headers: &HeaderMap) -> Metadata {
    let pairs = headers.iter().filter_map(|(name, value)| {
        let key = name.as_str().strip_prefix(METADATA)?;
        Some((key.to_owned(), value.to_str().ok()?.to_owned()))
    });
    Metadata::received(pairs)
}

/// The checksum of the object: of all of it, also with a range. In one header or several.
pub(super) fn crc32c_of(headers: &HeaderMap) -> Option<Crc32c> {
    let all = headers.get_all(HASH).iter().filter_map(|value| value.to_str().ok());
    let told =
        all.flat_map(|text| text.split(',')).find_map(|one| one.trim().strip_prefix("crc32c="));
    let bytes: [u8; 4] = STANDARD.decode(told?).ok()?.try_into().ok()?;
    Some(Crc32c(u32::from_be_bytes(bytes)))
}

/// The header that tells the bucket what it is to receive.
pub(super) fn hash_of(checksum: Crc32c) -> (&'static str, String) {
    (HASH, format!("crc32c={}", STANDARD.encode(checksum.0.to_be_bytes())))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_checksum_is_found_among_others() {
        let told = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(HASH, HeaderValue::from_static(value));
            }
            crc32c_of(&headers)
        };
        let hello = Some(Crc32c::of(b"hello"));
        assert_eq!(told(&["crc32c=mnG7TA==,md5=XUFAKrxLKna5cZ2REBfFkg=="]), hello);
        assert_eq!(told(&["md5=XUFAKrxLKna5cZ2REBfFkg==", "crc32c=mnG7TA=="]), hello);
        assert_eq!(told(&["md5=XUFAKrxLKna5cZ2REBfFkg=="]), None);
        assert_eq!(told(&["crc32c=x"]), None);
        assert_eq!(hash_of(Crc32c::of(b"hello")).1, "crc32c=mnG7TA==");
    }
}
