//! Whole blobs and the marks of directories, by one Put Blob each.

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use object_store::PutPayload;

use super::{Azure, answer::tag_in, metadata::with_metadata};
use crate::{Condition, Error, Metadata, Tag, temporary::is_temporary, web::Ask};

impl Azure {
    pub(crate) async fn put_small(
        &self,
        key: &str,
        body: Vec<Bytes>,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Tag, Error> {
        if is_temporary(key) {
            return Err(Error::invalid(format!(
                "{key:?} has a name that stands for an upload, and would be in no listing"
            )));
        }
        self.put(key, body, metadata, condition).await
    }

    /// Makes the empty blob `prefix`, unless there is one.
    pub(crate) async fn mark_directory(
        &self,
        prefix: &str,
        metadata: &Metadata,
    ) -> Result<(), Error> {
        self.put(prefix, Vec::new(), metadata, &Condition::Absent).await.map(drop)
    }

    pub(super) async fn put(
        &self,
        key: &str,
        body: Vec<Bytes>,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Tag, Error> {
        let ask = self.ask(Method::PUT, key, &[]).with("x-ms-blob-type", "BlockBlob")?;
        let ask = with_metadata(ask, metadata)?.with_body(PutPayload::from_iter(body));
        tag_in(&self.send_if(ask, condition).await?)
    }

    /// Sends what is to take effect under a condition.
    pub(super) async fn send_if(
        &self,
        ask: Ask,
        condition: &Condition,
    ) -> Result<HeaderMap, Error> {
        let ask = match condition {
            Condition::None => return Ok(self.web.send(&ask).await?.0),
            Condition::Absent => ask.with(header::IF_NONE_MATCH.as_str(), "*")?,
            Condition::Matches(tag) => ask.with(header::IF_MATCH.as_str(), tag.as_str())?,
        };
        Ok(self.web.send_unless_begun(&ask).await?.0)
    }
}
