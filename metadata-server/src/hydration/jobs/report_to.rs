//! Puts the report of a job into a bucket, with the server's own credentials, and never over
//! anything else.
//!
//! The object says in its metadata which report it is. So a call whose answer was lost, or that
//! comes twice, finds its own object and is done; any other object there is a conflict.

use std::io::Write as _;

use bytes::Bytes;
use millrace_object_source::{
    Bucket, Condition, Error as BucketError, Metadata, UploadId, UploadedPart,
};
use millrace_protocol::{
    cluster::LinkMode,
    job_options::{FetchReport, PutReport, PutReportReply},
};
use millrace_types::{ErrorKind, Failure, JobId};
use serde::Deserialize;

use super::{Environment, Jobs, blocking, outcomes};
use crate::{
    hydration::{
        import::{broken, linked_anywhere, spec_of},
        walk::refused,
    },
    namespace::{permission, tree},
    store::{
        keys,
        records::{self, LinkRecord},
    },
};

/// Bytes of a part; a report that has no more goes by one put.
const PART_LEN: usize = 8 * 1024 * 1024;

/// The key of the object's metadata that says which report it is.
const MARK: &str = "millrace-report";

/// A line, as a row of a table.
#[derive(Deserialize)]
struct Row {
    path: String,
    outcome: String,
    bytes: u64,
    error: Option<String>,
}

/// An object that is being made.
struct Object<'a> {
    bucket: &'a Bucket,
    key: &'a str,
    metadata: &'a Metadata,
    upload: Option<UploadId>,
    parts: Vec<UploadedPart>,
    sent: u64,
}

impl<E: Environment> Jobs<E> {
    /// Puts the report of a job that has ended into a bucket.
    ///
    /// # Errors
    /// As [`Self::outcomes`]; [`ErrorKind::InvalidArgument`] for a place that is none;
    /// [`ErrorKind::NotPermitted`] for a URL to anybody but root, and for a key to anybody but root
    /// and the owner of the link's directory; [`ErrorKind::ReadOnly`] where the link does not
    /// export; [`ErrorKind::Exists`] when another object is there; those of the bucket.
    pub async fn put_report(&self, request: &PutReport) -> Result<PutReportReply, Failure> {
        let PutReport { caller, id, table, .. } = request;
        // Whether there is one, and the caller may have it.
        let first = FetchReport { caller: caller.clone(), id: *id, offset: 0 };
        self.outcomes(&first).await?;
        let (link, key) = self.place_of_report(request).await?;
        let url = spec_of(&link.bucket)?.without_prefix().url_of(&key);
        let bucket = self.importer.bucket(&link.bucket)?;
        let form = if *table { "csv" } else { "jsonl" };
        let mark = format!("{}/{}/{form}", self.environment.cluster(), id.0);
        let metadata = Metadata::new([(MARK.to_owned(), mark.clone())])?;
        let mut object = Object {
            bucket: &bucket,
            key: &key,
            metadata: &metadata,
            upload: None,
            parts: Vec::new(),
            sent: 0,
        };
        match self.send_report(*id, *table, &mut object).await {
            Ok(()) => Ok(PutReportReply { url, size: object.sent }),
            Err(failure) => {
                if let Some(upload) = &object.upload
                    && let Err(error) = bucket.abort_upload(&key, upload).await
                {
                    tracing::warn!(key, %error, "an upload stays behind in the bucket");
                }
                // It may stand all the same, or from a call before.
                let there = bucket.head(&key).await.ok();
                match there.filter(|there| there.metadata.value(MARK) == Some(&mark)) {
                    Some(there) => Ok(PutReportReply { url, size: there.version.size }),
                    None => Err(failure),
                }
            }
        }
    }

    async fn place_of_report(&self, request: &PutReport) -> Result<(LinkRecord, String), Failure> {
        let record = self.record(request.id).await?;
        let (caller, to, root) = (request.caller.clone(), request.to.clone(), record.root);
        let query = self.environment.read(move |view| {
            let not_permitted = |words: &str| Failure::new(ErrorKind::NotPermitted, words);
            if to.contains("://") {
                if !permission::is_root(&caller) {
                    return Err(not_permitted("only root may name a URL: name a key"));
                }
                let links = tree::scan::<LinkRecord>(view, &keys::links(), usize::MAX);
                let links = links.map_err(broken)?.into_iter().map(|(_, link)| link);
                return link_for(links.filter(|link| !link.removing), &to);
            }
            let linked = linked_anywhere(view, root)?.ok_or_else(|| {
                let words = "the job's directory is in no link: name a URL";
                Failure::new(ErrorKind::InvalidArgument, words)
            })?;
            let link: Option<LinkRecord> =
                records::read(view, &keys::link(linked.link)).map_err(broken)?;
            let link = link.ok_or(ErrorKind::Stale)?;
            let top = tree::inode(view, link.directory).map_err(refused)?;
            if !permission::is_root(&caller) && top.uid != caller.uid {
                let words = "only the owner of the link's directory and root write beside it";
                return Err(not_permitted(words));
            }
            let key = format!("{}{to}", spec_of(&link.bucket)?.prefix());
            Ok((link, key))
        });
        let (link, key) = query.await?;
        if link.mode != LinkMode::ImportExport {
            let words = "the link does not export: add it with --mode import-export";
            return Err(Failure::new(ErrorKind::ReadOnly, words));
        }
        if key.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
            let words = format!("{key:?} is no key of a file");
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        Ok((link, key))
    }

    async fn send_report(
        &self,
        id: JobId,
        is_table: bool,
        object: &mut Object<'_>,
    ) -> Result<(), Failure> {
        let mut buffer = Vec::new();
        if is_table {
            buffer.extend_from_slice(b"path,outcome,bytes,error\n");
        }
        let mut next = Some(0);
        while let Some(offset) = next {
            let directory = self.environment.reports().to_owned();
            let page = blocking(move || outcomes::page(&directory, id, offset)).await?;
            match is_table {
                true => write_rows(&mut buffer, &page.lines)?,
                false => buffer.extend_from_slice(&page.lines),
            }
            next = page.next;
            if next.is_some() && buffer.len() >= PART_LEN {
                object.part(std::mem::take(&mut buffer)).await?;
            }
        }
        object.end(buffer).await
    }
}

impl Object<'_> {
    async fn part(&mut self, bytes: Vec<u8>) -> Result<(), Failure> {
        let upload = match self.upload.take() {
            Some(upload) => upload,
            None => self.bucket.create_upload(self.key, self.metadata).await?,
        };
        let upload = self.upload.insert(upload);
        let number = u16::try_from(self.parts.len() + 1).map_err(|_| ErrorKind::FileTooLarge)?;
        let len = bytes.len() as u64;
        let body = vec![Bytes::from(bytes)];
        let part = self.bucket.put_part(self.key, upload, number, self.sent, body).await?;
        self.parts.push(part);
        self.sent += len;
        Ok(())
    }

    async fn end(&mut self, rest: Vec<u8>) -> Result<(), Failure> {
        let condition = Condition::Absent;
        let made = if self.upload.is_none() {
            self.sent = rest.len() as u64;
            let body = vec![Bytes::from(rest)];
            let put = self.bucket.put_small(self.key, body, self.metadata, &condition);
            put.await.map(|stored| stored.tag)
        } else {
            self.part(rest).await?;
            let Some(upload) = &self.upload else { return Err(ErrorKind::Internal.into()) };
            self.bucket.complete_upload(self.key, upload, &self.parts, &condition).await
        };
        match made {
            Ok(_) => {
                self.upload = None;
                Ok(())
            }
            Err(BucketError::Changed { .. }) => {
                let words = format!("the bucket has another object at {}", self.key);
                Err(Failure::new(ErrorKind::Exists, words))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn write_rows(out: &mut Vec<u8>, lines: &[u8]) -> Result<(), Failure> {
    let damaged = |error: &dyn std::fmt::Display| {
        Failure::new(ErrorKind::Internal, format!("the report is damaged: {error}"))
    };
    let mut table = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    for row in serde_json::Deserializer::from_slice(lines).into_iter::<Row>() {
        let Row { path, outcome, bytes, error } = row.map_err(|error| damaged(&error))?;
        let (bytes, error) = (bytes.to_string(), error.unwrap_or_default());
        let written = table.write_record([&path, &outcome, &bytes, &error]);
        written.map_err(|error| damaged(&error))?;
    }
    let rows = table.into_inner().map_err(|error| damaged(&error))?;
    out.write_all(&rows).map_err(|error| damaged(&error))
}

/// The link through whose bucket a URL is reached, and the key there: one that exports, if any
/// does, and of those the one whose keys begin most like it.
fn link_for(
    links: impl Iterator<Item = LinkRecord>,
    to: &str,
) -> Result<(LinkRecord, String), Failure> {
    let refuse = |words: &str| Failure::new(ErrorKind::InvalidArgument, words);
    let mut found = Vec::new();
    for link in links {
        let spec = spec_of(&link.bucket)?;
        if let Some(key) = to.strip_prefix(&spec.without_prefix().url_of("")) {
            let below = key.starts_with(spec.prefix()).then(|| spec.prefix().len());
            let order = (link.mode == LinkMode::ImportExport, below);
            found.push((order, link, key.to_owned()));
        }
    }
    let words = "no link goes into that bucket: add one, or name a key below one";
    let best = found.iter().map(|(order, ..)| *order).max().ok_or_else(|| refuse(words))?;
    found.retain(|(order, ..)| *order == best);
    let way = |link: &LinkRecord| {
        let bucket = link.bucket.clone();
        (bucket.endpoint, bucket.region, bucket.credentials)
    };
    let (_, link, key) = found.swap_remove(0);
    // Two stores may have a bucket of one name.
    if found.iter().any(|(_, other, _)| way(other) != way(&link)) {
        let words = "links reach a bucket of that name in different ways: name a key below one";
        return Err(refuse(words));
    }
    Ok((link, key))
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{admin::AttributeSource, cluster};
    use millrace_types::InodeId;

    use super::*;

    fn link(url: &str, endpoint: &str, mode: LinkMode) -> LinkRecord {
        LinkRecord {
            directory: InodeId(2),
            bucket: cluster::Bucket {
                url: url.to_owned(),
                endpoint: Some(endpoint.to_owned()),
                region: None,
                credentials: None,
            },
            mode,
            refresh_seconds: 0,
            attributes: AttributeSource::Listing,
            removing: false,
        }
    }

    #[test]
    fn a_url_is_reached_through_the_link_that_is_most_like_it_and_never_by_chance() {
        use LinkMode::{Import, ImportExport};
        let one = || link("s3://b/runs", "http://one", ImportExport);
        let two = || link("s3://b/logs", "http://two", ImportExport);
        let reads = || link("s3://b/logs/deep", "http://three", Import);
        let endpoint = |links: Vec<LinkRecord>, to: &str| {
            let found = link_for(links.into_iter(), to);
            found.map(|(link, key)| (link.bucket.endpoint.unwrap(), key)).map_err(|f| f.kind)
        };
        let all = || vec![one(), two(), reads()];
        let told = |endpoint: &str, key: &str| Ok((endpoint.to_owned(), key.to_owned()));
        assert_eq!(endpoint(all(), "s3://b/runs/x"), told("http://one", "runs/x"));
        assert_eq!(endpoint(all(), "s3://b/logs/deep/x"), told("http://two", "logs/deep/x"));
        assert_eq!(endpoint(all(), "s3://b/other"), Err(ErrorKind::InvalidArgument));
        assert_eq!(endpoint(vec![one(), reads()], "s3://b/other"), told("http://one", "other"));
        assert_eq!(endpoint(vec![one(), one()], "s3://b/other"), told("http://one", "other"));
        assert_eq!(endpoint(all(), "s3://c/runs/x"), Err(ErrorKind::InvalidArgument));
    }
}
