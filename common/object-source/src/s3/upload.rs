//! Uploads by parts. Aborted through object_store; begun, listed and completed with requests of
//! our own.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use object_store::multipart::MultipartStore;

use super::{
    S3, answer,
    checksum::{self, Sort},
    path_of,
    put::{condition_headers, metadata_headers},
    signed::Ask,
};
use crate::{
    Condition, Continuation, Error, HeldPart, Metadata, Tag, UploadId, UploadedPart, UploadsPage,
    object::{PARTS_MAX, cursor_of},
    parts::{
        CompleteResult, ListPartsResult, ListedPart, about_upload, begun_upload, complete_body,
        listed_parts, uploads_of, uploads_page, without_repeated,
    },
};

impl S3 {
    pub(crate) async fn create_upload(
        &self,
        key: &str,
        metadata: &Metadata,
    ) -> Result<UploadId, Error> {
        let mut plain = metadata_headers(metadata)?;
        plain.extend(self.encryption.clone());
        let mut headers = plain.clone();
        checksum::begin(&mut headers);
        let with = self.create_upload_with(key, headers);
        let without = self.create_upload_with(key, plain);
        self.checksums.either(Sort::Begin, with, without).await
    }

    async fn create_upload_with(&self, key: &str, headers: HeaderMap) -> Result<UploadId, Error> {
        let (query, body) = (vec![("uploads", "")], Bytes::new());
        let ask = Ask { method: Method::POST, key: Some(key), query, headers, body };
        // Of two that are begun nobody would know the first.
        begun_upload(&self.signer.send_new(&ask).await?)
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
    ) -> Result<Vec<HeldPart>, Error> {
        let listed = self.all_parts(key, upload).await?.into_iter();
        let part = |part: ListedPart| {
            let (number, tag) = (part.part_number, answer::tag(Some(&part.tag))?);
            let held = UploadedPart { number, tag, len: part.size };
            Ok(HeldPart::with_checksum(held, part.checksum.as_deref()))
        };
        let mut parts = listed.map(part).collect::<Result<Vec<_>, Error>>()?;
        parts.sort_by_key(|held| held.part.number);
        Ok(without_repeated(parts))
    }

    async fn all_parts(&self, key: &str, upload: &UploadId) -> Result<Vec<ListedPart>, Error> {
        let mut parts = Vec::new();
        let mut marker = "0".to_owned();
        loop {
            let page = self.parts_after(key, upload, &marker).await?;
            parts.extend(page.parts);
            match page.next_part_number_marker.filter(|_| page.is_truncated) {
                Some(next) if next != marker && parts.len() < usize::from(PARTS_MAX) => {
                    marker = next;
                }
                _ => return Ok(parts),
            }
        }
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

    /// Looks whether the condition holds, and completes on condition that it still does: of servers
    /// that pass over the condition at the end of an upload only the look is left.
    pub(crate) async fn complete_upload(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[UploadedPart],
        condition: &Condition,
    ) -> Result<Tag, Error> {
        // Once: after an attempt it would perhaps see what that one made.
        self.look_whether(condition, key).await?;
        let answer = self.complete_with(key, upload, parts, condition, &BTreeMap::new()).await;
        match answer {
            Err(Error::Unavailable { message }) if wants_checksums(&message) => {
                let checksums = self.checksums_of_parts(key, upload).await?;
                if checksums.is_empty() {
                    return Err(Error::Unavailable { message });
                }
                self.complete_with(key, upload, parts, condition, &checksums).await
            }
            answer => answer,
        }
    }

    async fn look_whether(&self, condition: &Condition, key: &str) -> Result<(), Error> {
        if matches!(condition, Condition::None) {
            return Ok(());
        }
        let found = match self.head(key).await {
            Ok(head) => Some(head.version.tag),
            Err(Error::NotFound { .. }) if *condition == Condition::Absent => None,
            // What may not be looked at is there all the same, and who finds nothing may have met
            // a proxy that has lost the bucket: the listing tells.
            Err(Error::NotFound { .. } | Error::Denied { .. }) => match self.listed(key).await {
                Ok(listed) => listed.map(|version| version.tag),
                // That may not be asked either: the server decides.
                Err(Error::Denied { .. } | Error::Unsupported { .. }) => return Ok(()),
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        };
        match (condition, found) {
            (Condition::Absent, None) => Ok(()),
            (Condition::Matches(tag), Some(found)) if found == *tag => Ok(()),
            _ => Err(Error::Changed { key: key.to_owned() }),
        }
    }

    async fn complete_with(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[UploadedPart],
        condition: &Condition,
        checksums: &BTreeMap<u16, String>,
    ) -> Result<Tag, Error> {
        let mut headers = condition_headers(condition)?;
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        let ask = Ask {
            method: Method::POST,
            key: Some(key),
            query: vec![("uploadId", upload.as_str())],
            headers,
            body: complete_body(parts, checksums)?,
        };
        let body = self.signer.send_unless_begun(&ask).await?;
        let result: CompleteResult = quick_xml::de::from_reader(&*body).map_err(|error| {
            Error::unavailable(format!("the bucket's answer to a completion is malformed: {error}"))
        })?;
        answer::tag(Some(&result.tag))
    }

    /// What the bucket has of the parts' checksums, by number. Of a part that was sent twice the
    /// last one that it lists: the completion that names another fails.
    async fn checksums_of_parts(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> Result<BTreeMap<u16, String>, Error> {
        let listed = self.all_parts(key, upload).await?.into_iter();
        Ok(listed.filter_map(|part| Some((part.part_number, part.checksum?))).collect())
    }
}

/// Whether a server refuses a completion because it does not name the parts' checksums: one that
/// knows checksums of parts, and none of the whole, as MinIO does.
fn wants_checksums(message: &str) -> bool {
    [" InvalidPart", " InvalidRequest"].iter().any(|code| message.contains(code))
}
