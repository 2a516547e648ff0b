//! The end of an upload: the parts become the temporary object, and that the object, by a copy
//! within the server that has the condition.
//!
//! What a kill in the middle leaves behind is an upload or a temporary object beside the
//! destination, perhaps both the object and its temporary one. Whoever settles the export aborts
//! the upload, which deletes the temporary object too.

use std::collections::BTreeMap;

use http::{Method, header};

use super::{
    Google,
    answer::generation,
    upload::{Staged, about},
};
use crate::{Condition, Error, Tag, UploadId, UploadedPart, parts::complete_body};

const COPY_SOURCE: &str = "x-goog-copy-source";
const COPY_SOURCE_GENERATION: &str = "x-goog-copy-source-generation";

impl Google {
    pub(crate) async fn complete_upload(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[UploadedPart],
        condition: &Condition,
    ) -> Result<Tag, Error> {
        let staged = Staged::of(key, upload)?;
        let whole = self.assemble(key, &staged, parts).await?;
        let tag = self.publish(key, &staged, &whole, condition).await?;
        if let Err(error) = self.delete_temporary(&staged).await {
            tracing::warn!(key, %error, "the temporary object of an upload stays behind");
        }
        Ok(tag)
    }

    /// Makes the temporary object, or finds that it has been made: a completion that was refused by
    /// its condition may be tried again with another.
    async fn assemble(
        &self,
        key: &str,
        staged: &Staged<'_>,
        parts: &[UploadedPart],
    ) -> Result<Tag, Error> {
        let ask = self.ask(Method::POST, &staged.key, &[("uploadId", staged.upload)]);
        let ask = ask.with(header::CONTENT_TYPE.as_str(), "application/xml")?;
        let body = complete_body(parts, &BTreeMap::new())?;
        let told = match self.web.send(&ask.with_body(body)).await {
            Ok((headers, _)) => generation(&headers).ok(),
            Err(Error::NoUpload { .. } | Error::NotFound { .. }) => None,
            Err(error) => return Err(about(error, key)),
        };
        if let Some(generation) = told {
            return Ok(generation);
        }
        let head = self.head_any(&staged.key).await.map_err(|error| about(error, key))?;
        let size: u64 = parts.iter().map(|part| part.len).sum();
        if head.version.size != size {
            return Err(Error::unavailable(format!(
                "the parts of {key:?} are {size} bytes together, and the bucket made {} of them",
                head.version.size
            )));
        }
        Ok(head.version.tag)
    }

    async fn publish(
        &self,
        key: &str,
        staged: &Staged<'_>,
        whole: &Tag,
        condition: &Condition,
    ) -> Result<Tag, Error> {
        let ask = self
            .ask(Method::PUT, key, &[])
            .with(COPY_SOURCE, &self.address.path(Some(&staged.key)))?
            .with(COPY_SOURCE_GENERATION, whole.as_str())?;
        let copied = self.send_if(key, ask, condition).await;
        // Not found speaks of the source.
        let (headers, _) = copied.map_err(|error| about(error, key))?;
        // Without it the object is there, and HEAD will tell whose it is.
        generation(&headers)
    }
}
