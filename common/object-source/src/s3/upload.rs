//! Uploads by parts: begin and abort through object_store; parts listed and completion sent here.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use object_store::{PutMultipartOptions, multipart::MultipartStore};

use super::{S3, answer, attributes_of, path_of, signed::Ask};
use crate::{
    Condition, Continuation, Error, Metadata, Tag, UploadId, UploadedPart, UploadsPage,
    object::{PARTS_MAX, cursor_of},
    parts::{
        CompleteResult, ListPartsResult, about_upload, complete_body, listed_parts, uploads_of,
        uploads_page, without_repeated,
    },
};

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
        listed_parts(&body)
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
        let (key, id) =
            cursor_of(after)?.and_then(|cursor| cursor.split_once('\n')).unwrap_or_default();
        let mut query = vec![("encoding-type", "url"), ("prefix", prefix), ("uploads", "")];
        if !key.is_empty() {
            query.extend([("key-marker", key), ("upload-id-marker", id)]);
        }
        // The order in which they are signed.
        query.sort_unstable();
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        let ask = Ask { method: Method::GET, key: None, query, headers, body };
        uploads_page(&self.signer.send(&ask).await?, after)
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
