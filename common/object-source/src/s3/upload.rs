//! Uploads by parts: begin and abort through object_store; parts listed and completion sent here.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use object_store::{PutMultipartOptions, multipart::MultipartStore};
use serde::{Deserialize, Serialize};

use super::{S3, answer, attributes_of, list::decode, path_of, signed::Ask};
use crate::{
    BegunUpload, Condition, Continuation, Error, Metadata, Tag, UploadId, UploadedPart,
    UploadsPage, object::PARTS_MAX,
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
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CompleteResult {
    #[serde(rename = "ETag")]
    tag: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListPartsResult {
    is_truncated: bool,
    #[serde(default)]
    next_part_number_marker: Option<String>,
    #[serde(default, rename = "Part")]
    parts: Vec<ListedPart>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedPart {
    part_number: u16,
    #[serde(rename = "ETag")]
    tag: String,
    size: u64,
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

impl ListUploadsResult {
    fn is_encoded(&self) -> bool {
        self.encoding_type.as_deref() == Some("url")
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedUpload {
    key: String,
    upload_id: String,
    #[serde(default)]
    initiated: Option<String>,
}

impl S3 {
    pub(crate) async fn create_upload(
        &self,
        key: &str,
        metadata: &Metadata,
    ) -> Result<UploadId, Error> {
        let options = PutMultipartOptions {
            attributes: attributes_of(metadata),
            ..PutMultipartOptions::default()
        };
        let id = self
            .store
            .create_multipart_opts(&path_of(key)?, options)
            .await
            .map_err(|error| answer::translate(error, key))?;
        UploadId::new(id)
    }

    pub(crate) async fn abort_upload(&self, key: &str, upload: &UploadId) -> Result<(), Error> {
        self.store
            .abort_multipart(&path_of(key)?, &upload.as_str().to_owned())
            .await
            .map_err(|error| answer::translate_upload(error, key))
    }

    pub(crate) async fn list_parts(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> Result<Vec<UploadedPart>, Error> {
        let mut parts = Vec::new();
        let mut marker = "0".to_owned();
        loop {
            let page = self.parts_after(key, upload, &marker).await?;
            for part in page.parts {
                let tag = answer::tag(Some(&part.tag))?;
                parts.push(UploadedPart { number: part.part_number, tag, len: part.size });
            }
            match page.next_part_number_marker.filter(|_| page.is_truncated) {
                Some(next) if next != marker && parts.len() < usize::from(PARTS_MAX) => {
                    marker = next;
                }
                _ => break,
            }
        }
        parts.sort_by_key(|part| part.number);
        Ok(without_repeated(parts))
    }

    async fn parts_after(
        &self,
        key: &str,
        upload: &UploadId,
        marker: &str,
    ) -> Result<ListPartsResult, Error> {
        let ask = Ask {
            method: Method::GET,
            key: Some(key),
            query: vec![("part-number-marker", marker), ("uploadId", upload.as_str())],
            headers: HeaderMap::new(),
            body: Bytes::new(),
        };
        let body = self.signer.send(&ask).await.map_err(|error| about_upload(error, key))?;
        quick_xml::de::from_reader(&*body).map_err(|error| {
            Error::unavailable(format!("the bucket's list of parts is malformed: {error}"))
        })
    }

    pub(crate) async fn list_uploads(&self, key: &str) -> Result<Vec<UploadId>, Error> {
        let ask = Ask {
            method: Method::GET,
            key: None,
            // Keys may hold what XML cannot.
            query: vec![("encoding-type", "url"), ("prefix", key), ("uploads", "")],
            headers: HeaderMap::new(),
            body: Bytes::new(),
        };
        uploads_of(&self.signer.send(&ask).await?, key)
    }

    pub(crate) async fn list_uploads_below(
        &self,
        prefix: &str,
        after: Option<&Continuation>,
    ) -> Result<UploadsPage, Error> {
        // The bucket's cursor has two parts; a key holds no line feed.
        let (key, id) = after.and_then(|after| after.0.split_once('\n')).unwrap_or_default();
        let mut query = vec![("encoding-type", "url"), ("prefix", prefix), ("uploads", "")];
        if !key.is_empty() {
            query.extend([("key-marker", key), ("upload-id-marker", id)]);
        }
        // The order in which they are signed.
        query.sort_unstable();
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        let ask = Ask { method: Method::GET, key: None, query, headers, body };
        let page = uploads_page(&self.signer.send(&ask).await?)?;
        let encoded = page.is_encoded();
        let markers = page.next_key_marker.zip(page.next_upload_id_marker);
        let next = markers
            .filter(|_| page.is_truncated)
            .map(|(key, id)| Continuation(format!("{}\n{id}", decode(&key, encoded))));
        // A server that goes round would be asked for ever.
        let next = next.filter(|next| Some(next) != after);
        let uploads = page.uploads.into_iter().filter_map(|upload| {
            let begun = upload.initiated.and_then(|text| text.parse::<jiff::Timestamp>().ok());
            let begun = begun
                .map_or(i64::MAX, |begun| i64::try_from(begun.as_nanosecond()).unwrap_or(i64::MAX));
            Some(BegunUpload {
                key: decode(&upload.key, encoded),
                upload: UploadId::new(upload.upload_id).ok()?,
                begun: millrace_types::Timestamp(begun),
            })
        });
        Ok(UploadsPage { uploads: uploads.collect(), next })
    }

    pub(crate) async fn complete_upload(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[UploadedPart],
        condition: &Condition,
    ) -> Result<Tag, Error> {
        let mut headers = condition_headers(condition)?;
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        let ask = Ask {
            method: Method::POST,
            key: Some(key),
            query: vec![("uploadId", upload.as_str())],
            headers,
            body: complete_body(parts)?,
        };
        let body = self.signer.send_unless_begun(&ask).await?;
        let result: CompleteResult = quick_xml::de::from_reader(&*body).map_err(|error| {
            Error::unavailable(format!("the bucket's answer to a completion is malformed: {error}"))
        })?;
        answer::tag(Some(&result.tag))
    }

    /// Begins an upload and gives it up: to see whether writing is allowed.
    pub(super) async fn try_upload(&self, key: &str) -> Result<(), Error> {
        let upload = self.create_upload(key, &Metadata::default()).await?;
        self.abort_upload(key, &upload).await
    }
}

/// The uploads in a list of those below a prefix that are of exactly this key.
fn uploads_of(answer: &[u8], key: &str) -> Result<Vec<UploadId>, Error> {
    let page = uploads_page(answer)?;
    if page.is_truncated {
        tracing::warn!(key, "the bucket has more unfinished uploads than it lists at once");
    }
    let encoded = page.is_encoded();
    let uploads = page.uploads.into_iter();
    let uploads = uploads.filter(|upload| decode(&upload.key, encoded) == key);
    uploads.map(|upload| UploadId::new(upload.upload_id)).collect()
}

fn uploads_page(answer: &[u8]) -> Result<ListUploadsResult, Error> {
    quick_xml::de::from_reader(answer).map_err(|error| {
        Error::unavailable(format!("the bucket's list of uploads is malformed: {error}"))
    })
}

/// 404 on a request that names an upload speaks of the upload.
fn about_upload(error: Error, key: &str) -> Error {
    match error {
        Error::NotFound { .. } => Error::NoUpload { key: key.to_owned() },
        other => other,
    }
}

/// SeaweedFS goes on listing a part that was replaced, beside its successor and in no order of
/// time. Which of them counts is unknown: neither is told, so that the part is sent again.
fn without_repeated(parts: Vec<UploadedPart>) -> Vec<UploadedPart> {
    parts
        .chunk_by(|a, b| a.number == b.number)
        .filter(|same| same.len() == 1)
        .flatten()
        .cloned()
        .collect()
}

fn condition_headers(condition: &Condition) -> Result<HeaderMap, Error> {
    let (name, value): (HeaderName, HeaderValue) = match condition {
        Condition::None => return Ok(HeaderMap::new()),
        Condition::Absent => (header::IF_NONE_MATCH, HeaderValue::from_static("*")),
        Condition::Matches(tag) => {
            let value = HeaderValue::from_str(tag.as_str());
            let value = value.map_err(|_| Error::invalid("an entity tag that cannot be sent"))?;
            (header::IF_MATCH, value)
        }
    };
    Ok(HeaderMap::from_iter([(name, value)]))
}

fn complete_body(parts: &[UploadedPart]) -> Result<Bytes, Error> {
    let parts = parts.iter();
    let request = CompleteRequest {
        parts: parts
            .map(|part| CompletePart { tag: part.tag.as_str(), part_number: part.number })
            .collect(),
    };
    let text = quick_xml::se::to_string(&request)
        .map_err(|error| Error::invalid(format!("the list of parts: {error}")))?;
    Ok(Bytes::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_listed_twice_counts_as_missing() {
        let part = |number| UploadedPart { number, tag: Tag::new("t").unwrap(), len: 1 };
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
        let body = complete_body(&[part(1, "\"a\""), part(3, "b")]).unwrap();
        assert_eq!(
            std::str::from_utf8(&body).unwrap(),
            "<CompleteMultipartUpload><Part><ETag>\"a\"</ETag><PartNumber>1</PartNumber></Part>\
             <Part><ETag>b</ETag><PartNumber>3</PartNumber></Part></CompleteMultipartUpload>"
        );
    }
}
