//! Uploads by parts, to a temporary object beside the destination.
//!
//! Our id of an upload is the temporary object's and GCS's, joined by a dot. Where only the
//! temporary object is left, as when a process was killed before it was deleted, the second is
//! empty.

use bytes::Bytes;
use http::{Method, header};
use object_store::PutPayload;

use super::{Google, write::with_metadata};
use crate::{
    Error, HeldPart, Metadata, Tag, UploadId, UploadedPart,
    object::PARTS_MAX,
    parts::{about_upload, begun_upload, listed_parts, listed_uploads, without_repeated},
    temporary,
};

/// An upload that was begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Staged<'u> {
    /// The temporary object's key.
    pub(super) key: String,
    /// GCS's own id; empty when nothing but the object can be left.
    pub(super) upload: &'u str,
}

impl<'u> Staged<'u> {
    /// Reads our id of an upload to `key`.
    pub(super) fn of(key: &str, upload: &'u UploadId) -> Result<Self, Error> {
        let unknown = || Error::NoUpload { key: key.to_owned() };
        let (id, upload) = upload.as_str().split_once('.').ok_or_else(unknown)?;
        let key = temporary::key_of(key, id).map_err(|_| unknown())?;
        Ok(Self { key, upload })
    }
}

pub(super) fn upload_id(id: &str, upload: &str) -> Result<UploadId, Error> {
    UploadId::new(format!("{id}.{upload}"))
}

impl Google {
    pub(crate) async fn create_upload(
        &self,
        key: &str,
        metadata: &Metadata,
    ) -> Result<UploadId, Error> {
        let id = temporary::new_id();
        let temporary = temporary::key_of(key, &id)?;
        let ask = with_metadata(self.ask(Method::POST, &temporary, &[("uploads", "")]), metadata)?;
        // Of two that are begun nobody would know the first.
        let (_, body) = self.web.send_new(&ask).await?;
        upload_id(&id, begun_upload(&body)?.as_str())
    }

    pub(crate) async fn put_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        body: Vec<Bytes>,
    ) -> Result<Tag, Error> {
        let staged = Staged::of(key, upload)?;
        let number = number.to_string();
        let query = [("partNumber", number.as_str()), ("uploadId", staged.upload)];
        let ask = self.ask(Method::PUT, &staged.key, &query);
        let sent = self.web.send(&ask.with_body(PutPayload::from_iter(body))).await;
        let (headers, _) = sent.map_err(|error| about(error, key))?;
        let tag = headers.get(header::ETAG).and_then(|value| value.to_str().ok());
        Tag::new(tag.unwrap_or_default())
            .map_err(|_| Error::unavailable("the bucket's answer to a part has no usable tag"))
    }

    pub(crate) async fn list_parts(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> Result<Vec<HeldPart>, Error> {
        let staged = Staged::of(key, upload)?;
        let mut parts = Vec::new();
        let mut marker = "0".to_owned();
        loop {
            let query = [("part-number-marker", marker.as_str()), ("uploadId", staged.upload)];
            let ask = self.ask(Method::GET, &staged.key, &query);
            let (_, body) = self.web.send(&ask).await.map_err(|error| about(error, key))?;
            let page = listed_parts(&body)?;
            for part in page.parts {
                let tag = Tag::new(part.tag)?;
                let held = UploadedPart { number: part.part_number, tag, len: part.size };
                parts.push(HeldPart::tagged(held));
            }
            match page.next_part_number_marker.filter(|_| page.is_truncated) {
                Some(next) if next != marker && parts.len() < usize::from(PARTS_MAX) => {
                    marker = next;
                }
                _ => break,
            }
        }
        parts.sort_by_key(|held| held.part.number);
        Ok(without_repeated(parts))
    }

    /// Uploads that are not over, and temporary objects that were to be published or deleted.
    pub(crate) async fn list_uploads(&self, key: &str) -> Result<Vec<UploadId>, Error> {
        let prefix = temporary::prefix_of(key);
        let query = [("encoding-type", "url"), ("prefix", prefix.as_str()), ("uploads", "")];
        let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
        let mut found = Vec::new();
        for (temporary, upload) in listed_uploads(&answer, &prefix)? {
            if let Some(id) = temporary::id_of(&temporary, key) {
                found.push(upload_id(id, &upload)?);
            }
        }
        for temporary in self.few_below(&prefix).await? {
            if let Some(id) = temporary::id_of(&temporary, key) {
                found.push(upload_id(id, "")?);
            }
        }
        Ok(found)
    }

    pub(crate) async fn abort_upload(&self, key: &str, upload: &UploadId) -> Result<(), Error> {
        let staged = Staged::of(key, upload)?;
        if !staged.upload.is_empty() {
            let ask = self.ask(Method::DELETE, &staged.key, &[("uploadId", staged.upload)]);
            match self.web.send(&ask).await {
                Ok(_) | Err(Error::NotFound { .. } | Error::NoUpload { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // It may have become an object before its completion was refused.
        self.delete_temporary(&staged).await
    }

    pub(super) async fn delete_temporary(&self, staged: &Staged<'_>) -> Result<(), Error> {
        match self.web.send(&self.ask(Method::DELETE, &staged.key, &[])).await {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// An error of a request about the temporary object, told of the destination.
pub(super) fn about(error: Error, key: &str) -> Error {
    match about_upload(error, key) {
        Error::NoUpload { .. } => Error::NoUpload { key: key.to_owned() },
        Error::Changed { .. } => Error::Changed { key: key.to_owned() },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_the_temporary_object_and_the_upload_to_it() {
        let upload = upload_id("0123456789abcdef", "ABPnz.x-y_z").unwrap();
        let staged = Staged::of("a/b", &upload).unwrap();
        let key = "a/.b.millrace-0123456789abcdef".to_owned();
        assert_eq!(staged, Staged { key, upload: "ABPnz.x-y_z" });
        for bad in ["x", "0123456789abcdef", "..", "0123456789abcde/.x", "012.x"] {
            let bad = UploadId::new(bad).unwrap();
            assert!(matches!(Staged::of("a", &bad), Err(Error::NoUpload { .. })), "{bad:?}");
        }
    }
}
