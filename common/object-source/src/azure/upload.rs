//! Uploads by parts: blocks staged for the destination, and the list of them that makes it.
//!
//! The ids of blocks begin with the upload's, so that two uploads to one key do not mix. Blocks
//! that no list names are thrown away with the next list or put of that key, or after a week.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, header};
use object_store::PutPayload;
use serde::{Deserialize, Serialize};

use super::{Azure, answer::tag_in, metadata::with_metadata};
use crate::{Condition, Error, HeldPart, Metadata, Tag, UploadId, UploadedPart, temporary};

/// The list that makes a blob.
#[derive(Debug, Serialize)]
#[serde(rename = "BlockList")]
struct NewBlocks {
    /// Whether staged or already in the blob: a list may be sent again.
    #[serde(rename = "Latest")]
    ids: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BlockList {
    #[serde(default)]
    uncommitted_blocks: Blocks,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Blocks {
    block: Vec<Block>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Block {
    name: String,
    size: u64,
}

/// The blob that stands for an upload.
fn mark_of(key: &str, upload: &UploadId) -> Result<String, Error> {
    let unknown = |_| Error::NoUpload { key: key.to_owned() };
    temporary::key_of(key, upload.as_str()).map_err(unknown)
}

/// All ids of one blob have the same length, which Azure wants.
fn block_id(upload: &UploadId, number: u16) -> String {
    STANDARD.encode(format!("{}-{number:05}", upload.as_str()))
}

/// The number of a block, if it is one of this upload.
fn number_of(id: &str, upload: &UploadId) -> Option<u16> {
    let text = String::from_utf8(STANDARD.decode(id).ok()?).ok()?;
    text.strip_prefix(upload.as_str())?.strip_prefix('-')?.parse().ok()
}

impl Azure {
    pub(crate) async fn create_upload(
        &self,
        key: &str,
        metadata: &Metadata,
    ) -> Result<UploadId, Error> {
        let id = temporary::new_id();
        let mark = temporary::key_of(key, &id)?;
        self.put(&mark, Vec::new(), metadata, &Condition::None).await?;
        UploadId::new(id)
    }

    pub(crate) async fn put_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        body: Vec<Bytes>,
    ) -> Result<Tag, Error> {
        // Or the block would lie about for a week.
        self.metadata_of_upload(key, upload).await?;
        let id = block_id(upload, number);
        let ask = self.ask(Method::PUT, key, &[("comp", "block"), ("blockid", &id)]);
        self.web.send(&ask.with_body(PutPayload::from_iter(body))).await?;
        Tag::new(id)
    }

    pub(crate) async fn list_parts(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> Result<Vec<HeldPart>, Error> {
        self.metadata_of_upload(key, upload).await?;
        let query = [("comp", "blocklist"), ("blocklisttype", "uncommitted")];
        let body = match self.web.send(&self.ask(Method::GET, key, &query)).await {
            Ok((_, body)) => body,
            Err(Error::NotFound { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&body);
        let list: BlockList = quick_xml::de::from_reader(body).map_err(|error| {
            Error::unavailable(format!("the container's list of blocks is malformed: {error}"))
        })?;
        let mut parts = Vec::new();
        for block in list.uncommitted_blocks.block {
            if let Some(number) = number_of(&block.name, upload) {
                let part = UploadedPart { number, tag: Tag::new(block.name)?, len: block.size };
                // The list has names and sizes.
                parts.push(HeldPart { part, digest: None });
            }
        }
        parts.sort_by_key(|held| held.part.number);
        Ok(parts)
    }

    /// The list of the blocks carries the condition and the metadata.
    pub(crate) async fn complete_upload(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[UploadedPart],
        condition: &Condition,
    ) -> Result<Tag, Error> {
        let metadata = self.metadata_of_upload(key, upload).await?;
        let ids = parts.iter().map(|part| block_id(upload, part.number)).collect();
        let body = quick_xml::se::to_string(&NewBlocks { ids })
            .map_err(|error| Error::invalid(format!("the list of blocks: {error}")))?;
        let ask = self.ask(Method::PUT, key, &[("comp", "blocklist")]);
        let ask = ask.with(header::CONTENT_TYPE.as_str(), "application/xml")?;
        let ask = with_metadata(ask, &metadata)?.with_body(body);
        let tag = tag_in(&self.send_if(ask, condition).await?)?;
        if let Err(error) = self.abort_upload(key, upload).await {
            tracing::warn!(key, %error, "the mark of an upload stays behind");
        }
        Ok(tag)
    }

    pub(crate) async fn list_uploads(&self, key: &str) -> Result<Vec<UploadId>, Error> {
        let found = self.few_below(&temporary::prefix_of(key)).await?;
        let ids = found.iter().filter_map(|mark| temporary::id_of(mark, key));
        ids.map(UploadId::new).collect()
    }

    /// Ends the upload. Its blocks are Azure's to throw away.
    pub(crate) async fn abort_upload(&self, key: &str, upload: &UploadId) -> Result<(), Error> {
        let ask = self.ask(Method::DELETE, &mark_of(key, upload)?, &[]);
        self.web.send(&ask).await.map(drop)
    }

    async fn metadata_of_upload(&self, key: &str, upload: &UploadId) -> Result<Metadata, Error> {
        let head = self.head_directory(&mark_of(key, upload)?).await;
        head.map_err(|error| match error {
            Error::NotFound { .. } => Error::NoUpload { key: key.to_owned() },
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_tell_whose_they_are_and_have_one_length() {
        let [one, two] =
            ["0123456789abcdef", "0123456789abcde0"].map(|id| UploadId::new(id).unwrap());
        assert_eq!(number_of(&block_id(&one, 7), &one), Some(7));
        assert_eq!(number_of(&block_id(&one, 10_000), &one), Some(10_000));
        assert_eq!(number_of(&block_id(&one, 7), &two), None);
        assert_eq!(number_of("strange", &one), None);
        assert_eq!(block_id(&one, 1).len(), block_id(&one, 10_000).len());
        let body = quick_xml::se::to_string(&NewBlocks { ids: vec!["a".into(), "b".into()] });
        assert_eq!(body.unwrap(), "<BlockList><Latest>a</Latest><Latest>b</Latest></BlockList>");
    }
}
