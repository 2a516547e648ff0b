//! The documents of uploads by parts, which S3 and the XML API of GCS share.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    BegunUpload, Continuation, Error, HeldPart, UploadId, UploadedPart, UploadsPage,
    listing::decode,
};

#[derive(Debug, Serialize)]
#[serde(rename = "CompleteMultipartUpload")]
struct CompleteRequest<'a> {
    #[serde(rename = "Part")]
    parts: Vec<CompletePart<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct CompletePart<'a> {
    #[serde(rename = "ETag")]
    tag: &'a str,
    part_number: u16,
    #[serde(rename = "ChecksumCRC32C", skip_serializing_if = "Option::is_none")]
    checksum: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InitiateResult {
    upload_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CompleteResult {
    #[serde(rename = "ETag")]
    pub(crate) tag: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListPartsResult {
    pub(crate) is_truncated: bool,
    #[serde(default)]
    pub(crate) next_part_number_marker: Option<String>,
    #[serde(default, rename = "Part")]
    pub(crate) parts: Vec<ListedPart>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListedPart {
    pub(crate) part_number: u16,
    #[serde(rename = "ETag")]
    pub(crate) tag: String,
    pub(crate) size: u64,
    /// On S3, of a part that was sent with it: in Base64.
    #[serde(default, rename = "ChecksumCRC32C")]
    pub(crate) checksum: Option<String>,
}

/// One page: so many uploads of one key are left by nothing that works.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListUploadsResult {
    /// Needed, so that another document is never taken for an empty list.
    is_truncated: bool,
    #[serde(default, rename = "Upload")]
    uploads: Vec<ListedUpload>,
    #[serde(default)]
    encoding_type: Option<String>,
    #[serde(default)]
    next_key_marker: Option<String>,
    #[serde(default)]
    next_upload_id_marker: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedUpload {
    key: String,
    upload_id: String,
    #[serde(default)]
    initiated: Option<String>,
}

impl ListUploadsResult {
    fn read(answer: &[u8]) -> Result<Self, Error> {
        quick_xml::de::from_reader(answer).map_err(|error| {
            Error::unavailable(format!("the bucket's list of uploads is malformed: {error}"))
        })
    }

    fn is_encoded(&self) -> bool {
        self.encoding_type.as_deref() == Some("url")
    }
}

/// Reads which upload has begun.
pub(crate) fn begun_upload(answer: &[u8]) -> Result<UploadId, Error> {
    let result: InitiateResult = quick_xml::de::from_reader(answer).map_err(|error| {
        Error::unavailable(format!("the bucket begins an upload and does not say which: {error}"))
    })?;
    UploadId::new(result.upload_id)
}

/// Reads a list of parts.
pub(crate) fn listed_parts(answer: &[u8]) -> Result<ListPartsResult, Error> {
    quick_xml::de::from_reader(answer).map_err(|error| {
        Error::unavailable(format!("the bucket's list of parts is malformed: {error}"))
    })
}

/// The uploads in a list of those below a prefix: each one's key and id.
pub(crate) fn listed_uploads(answer: &[u8], prefix: &str) -> Result<Vec<(String, String)>, Error> {
    let page = ListUploadsResult::read(answer)?;
    if page.is_truncated {
        tracing::warn!(prefix, "the bucket has more unfinished uploads than it lists at once");
    }
    let encoded = page.is_encoded();
    let uploads = page.uploads.into_iter();
    Ok(uploads.map(|upload| (decode(&upload.key, encoded), upload.upload_id)).collect())
}

/// One page of a list of uploads, which was asked for from `after` on.
pub(crate) fn uploads_page(
    answer: &[u8],
    after: Option<&Continuation>,
) -> Result<UploadsPage, Error> {
    let page = ListUploadsResult::read(answer)?;
    let encoded = page.is_encoded();
    let markers = page.next_key_marker.zip(page.next_upload_id_marker);
    // The bucket's cursor has two parts; a key holds no line feed.
    let next = markers
        .filter(|_| page.is_truncated)
        .map(|(key, id)| Continuation::cursor(&format!("{}\n{id}", decode(&key, encoded))));
    // A server that goes round would be asked for ever.
    let next = next.filter(|next| Some(next) != after);
    let uploads = page.uploads.into_iter().filter_map(|upload| {
        let begun = upload.initiated.and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let begun = begun
            .map_or(i64::MAX, |begun| i64::try_from(begun.as_nanosecond()).unwrap_or(i64::MAX));
        Some(BegunUpload {
            key: decode(&upload.key, encoded),
            upload: UploadId::new(upload.upload_id).ok()?,
            begun: Timestamp(begun),
        })
    });
    Ok(UploadsPage { uploads: uploads.collect(), next })
}

/// Those of exactly this key.
pub(crate) fn uploads_of(answer: &[u8], key: &str) -> Result<Vec<UploadId>, Error> {
    let uploads = listed_uploads(answer, key)?.into_iter().filter(|(of, _)| of == key);
    uploads.map(|(_, id)| UploadId::new(id)).collect()
}

/// 404 on a request that names an upload speaks of the upload.
pub(crate) fn about_upload(error: Error, key: &str) -> Error {
    match error {
        Error::NotFound { .. } => Error::NoUpload { key: key.to_owned() },
        other => other,
    }
}

/// SeaweedFS goes on listing a part that was replaced, beside its successor and in no order of
/// time. Which of them counts is unknown: neither is told, so that the part is sent again.
pub(crate) fn without_repeated(parts: Vec<HeldPart>) -> Vec<HeldPart> {
    parts
        .chunk_by(|a, b| a.part.number == b.part.number)
        .filter(|same| same.len() == 1)
        .flatten()
        .cloned()
        .collect()
}

/// The document that names the parts of an object, with the checksums that are known of them, by
/// number.
pub(crate) fn complete_body(
    parts: &[UploadedPart],
    checksums: &BTreeMap<u16, String>,
) -> Result<Bytes, Error> {
    let parts = parts.iter();
    let request = CompleteRequest {
        parts: parts
            .map(|part| CompletePart {
                tag: part.tag.as_str(),
                part_number: part.number,
                checksum: checksums.get(&part.number).map(String::as_str),
            })
            .collect(),
    };
    let text = quick_xml::se::to_string(&request)
        .map_err(|error| Error::invalid(format!("the list of parts: {error}")))?;
    Ok(Bytes::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tag;

    #[test]
    fn a_part_that_is_listed_twice_counts_as_missing() {
        let part =
            |number| HeldPart::tagged(UploadedPart { number, tag: Tag::new("t").unwrap(), len: 1 });
        let told = without_repeated([1, 2, 2, 3, 4, 4, 4].map(part).to_vec());
        assert_eq!(told, [1, 3].map(part));
    }

    #[test]
    fn uploads_of_other_keys_below_the_prefix_are_not_taken_for_the_keys() {
        let answer = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>\
             <EncodingType>url</EncodingType>\
             <Upload><Key>out/a%2Bb</Key><UploadId>1</UploadId></Upload>\
             <Upload><Key>out/a%2Bb.index</Key><UploadId>2</UploadId></Upload>\
             <Upload><Key>out/a%2Bb</Key><UploadId>3</UploadId></Upload>\
             </ListMultipartUploadsResult>";
        let found = uploads_of(answer.as_bytes(), "out/a+b").unwrap();
        assert_eq!(found, [UploadId::new("1").unwrap(), UploadId::new("3").unwrap()]);
        let none = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>\
             </ListMultipartUploadsResult>";
        assert!(uploads_of(none.as_bytes(), "out/a+b").unwrap().is_empty());
        assert!(uploads_of(b"<ListBucketResult></ListBucketResult>", "out").is_err());
    }

    #[test]
    fn a_completion_names_each_part_with_its_tag() {
        let part = |number, tag: &str| UploadedPart { number, tag: Tag::new(tag).unwrap(), len: 1 };
        let checksums = BTreeMap::from([(3, "mnG7TA==".to_owned()), (4, "other".to_owned())]);
        let body = complete_body(&[part(1, "\"a\""), part(3, "b")], &checksums).unwrap();
        assert_eq!(
            std::str::from_utf8(&body).unwrap(),
            "<CompleteMultipartUpload><Part><ETag>\"a\"</ETag><PartNumber>1</PartNumber></Part>\
             <Part><ETag>b</ETag><PartNumber>3</PartNumber>\
             <ChecksumCRC32C>mnG7TA==</ChecksumCRC32C></Part></CompleteMultipartUpload>"
        );
    }
}
