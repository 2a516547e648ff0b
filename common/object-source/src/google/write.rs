//! Whole objects and the marks of directories, by one PUT each.

use bytes::Bytes;
use http::Method;
use millrace_types::Crc32c;
use object_store::PutPayload;

use super::{
    Google,
    answer::generation,
    read::{IF_GENERATION, METADATA, crc32c_of, hash_of, known},
};
use crate::{Condition, Error, Metadata, Stored, temporary::is_temporary, web::Ask};

impl Google {
    pub(crate) async fn put_small(
        &self,
        key: &str,
        body: Vec<Bytes>,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Stored, Error> {
        if is_temporary(key) {
            return Err(Error::invalid(format!(
                "{key:?} has a name that stands for an upload, and would be in no listing"
            )));
        }
        self.put(key, body, metadata, condition).await
    }

    /// Makes the empty object `prefix`, unless there is one.
    pub(crate) async fn mark_directory(
        &self,
        prefix: &str,
        metadata: &Metadata,
    ) -> Result<(), Error> {
        self.put(prefix, Vec::new(), metadata, &Condition::Absent).await.map(drop)
    }

    async fn put(
        &self,
        key: &str,
        body: Vec<Bytes>,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Stored, Error> {
        let checksum = body.iter().fold(Crc32c::EMPTY, |sum, bytes| sum.append(bytes));
        // What arrives otherwise is refused by the bucket.
        let (hash, text) = hash_of(checksum);
        let ask = self.ask(Method::PUT, key, &[]).with(hash, &text)?;
        let ask = with_metadata(ask, metadata)?.with_body(PutPayload::from_iter(body));
        let (headers, _) = self.send_if(key, ask, condition).await?;
        let told = crc32c_of(&headers);
        if told.is_some_and(|told| told != checksum) {
            return Err(Error::Damaged { key: key.to_owned() });
        }
        Ok(Stored { tag: generation(&headers)?, is_checked: told.is_some() })
    }

    /// Sends what is to take effect under a condition.
    pub(super) async fn send_if(
        &self,
        key: &str,
        ask: Ask,
        condition: &Condition,
    ) -> Result<(http::HeaderMap, Bytes), Error> {
        let generation = match condition {
            Condition::None => return self.web.send(&ask).await,
            Condition::Absent => "0",
            Condition::Matches(tag) => known(key, tag)?,
        };
        self.web.send_unless_begun(&ask.with(IF_GENERATION, generation)?).await
    }
}

/// Adds user metadata, and a type that nobody interprets.
pub(super) fn with_metadata(ask: Ask, metadata: &Metadata) -> Result<Ask, Error> {
    let mut ask = ask.with(http::header::CONTENT_TYPE.as_str(), "application/octet-stream")?;
    for (key, value) in metadata.iter() {
        ask = ask.with(&format!("{METADATA}{key}"), value)?;
    }
    Ok(ask)
}
