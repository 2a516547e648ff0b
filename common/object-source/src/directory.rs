//! A directory that plays a bucket: `file://`.
//!
//! Keys are paths below the root. Every path is opened by `openat2` beneath the root without
//! following symbolic links, so that no key leads out of it. Objects are replaced by rename, whole
//! or not at all. User metadata are extended attributes `user.millrace.KEY`, where the file system
//! has them; where not, they are dropped.
//!
//! The version of a file is its inode number, modification time and size. A condition is checked
//! just before the rename: against processes that do not go through Millrace a window of
//! microseconds remains, which POSIX gives no means to close.
//!
//! What a file system that is not mounted leaves is a directory, too, with nothing in it. So that
//! something is gone is only said of the directory in which something was found before (`tree`).

use std::{ops::Range, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, TryStreamExt, stream::BoxStream};
use tokio::{sync::Mutex, time};

use self::{tree::Tree, write::Part};
use crate::{
    Condition, Continuation, Counters, Error, Head, Metadata, ObjectVersion, Page, RequestClass,
    Tag, Trial, Untried, UploadId, UploadsPage,
};

mod list;
mod read;
mod tree;
mod write;

/// The root, and where its use is counted.
#[derive(Debug)]
pub(crate) struct Directory {
    tree: Arc<Tree>,
    counters: Arc<Counters>,
    /// Who tries it: one at a time, so that no more than one thread hangs where trials do.
    trying: Arc<Mutex<()>>,
}

impl Directory {
    pub(crate) fn new(root: PathBuf, counters: Arc<Counters>) -> Self {
        Self { tree: Arc::new(Tree::new(root)), counters, trying: Arc::default() }
    }

    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: Option<&Continuation>,
    ) -> Result<Page, Error> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.blocking(RequestClass::List, move |tree| list::page(tree, &prefix, after)).await
    }

    pub(crate) async fn has_below(&self, prefix: &str) -> Result<bool, Error> {
        let prefix = prefix.to_owned();
        self.blocking(RequestClass::List, move |tree| list::has_below(tree, &prefix)).await
    }

    pub(crate) async fn listed(&self, key: &str) -> Result<Option<ObjectVersion>, Error> {
        let key = key.to_owned();
        self.blocking(RequestClass::List, move |tree| list::object(tree, &key)).await
    }

    pub(crate) async fn head(&self, key: &str) -> Result<Head, Error> {
        let key = key.to_owned();
        self.blocking(RequestClass::Head, move |tree| read::head(tree, &key)).await
    }

    pub(crate) async fn head_directory(&self, prefix: &str) -> Result<Metadata, Error> {
        let prefix = prefix.to_owned();
        self.blocking(RequestClass::Head, move |tree| read::directory(tree, &prefix)).await
    }

    /// Whether nothing is at a key, or at a prefix if it ends in `/`, of the directory that the
    /// bucket is known to be.
    pub(crate) async fn lacks(&self, key: &str) -> Result<bool, Error> {
        let key = key.to_owned();
        self.blocking(RequestClass::List, move |tree| read::lacks(tree, &key)).await
    }

    pub(crate) async fn mark_directory(
        &self,
        prefix: &str,
        metadata: &Metadata,
    ) -> Result<(), Error> {
        let (prefix, metadata) = (prefix.to_owned(), metadata.clone());
        let work = move |tree: &Tree| write::directory(tree, &prefix, &metadata);
        self.blocking(RequestClass::Put, work).await
    }

    pub(crate) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        if_match: &Tag,
    ) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
        let (key, tag) = (key.to_owned(), if_match.clone());
        let reader = self
            .blocking(RequestClass::Get, move |tree| read::Reader::open(tree, &key, range, tag))
            .await?;
        Ok(reader.into_stream())
    }

    pub(crate) async fn put(
        &self,
        key: &str,
        body: Vec<Bytes>,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Tag, Error> {
        let (key, metadata, condition) = (key.to_owned(), metadata.clone(), condition.clone());
        self.sent(&body);
        self.blocking(RequestClass::Put, move |tree| {
            write::put(tree, &key, &body, &metadata, &condition)
        })
        .await
    }

    pub(crate) async fn create_upload(
        &self,
        key: &str,
        metadata: &Metadata,
    ) -> Result<UploadId, Error> {
        let (key, metadata) = (key.to_owned(), metadata.clone());
        self.blocking(RequestClass::Upload, move |tree| write::create(tree, &key, &metadata)).await
    }

    pub(crate) async fn put_part(
        &self,
        key: &str,
        upload: &UploadId,
        offset: u64,
        body: Vec<Bytes>,
    ) -> Result<Tag, Error> {
        let (key, upload) = (key.to_owned(), upload.clone());
        self.sent(&body);
        self.blocking(RequestClass::Part, move |tree| {
            let mut part = Part::begin(tree, &key, &upload, offset)?;
            body.iter().try_for_each(|bytes| part.write(tree, bytes))?;
            part.end(tree)
        })
        .await
    }

    pub(crate) async fn complete_upload(
        &self,
        key: &str,
        upload: &UploadId,
        size: u64,
        condition: &Condition,
    ) -> Result<Tag, Error> {
        let (key, upload, condition) = (key.to_owned(), upload.clone(), condition.clone());
        self.blocking(RequestClass::Upload, move |tree| {
            write::complete(tree, &key, &upload, size, &condition)
        })
        .await
    }

    /// Writes what is read piece by piece.
    pub(crate) async fn put_part_streamed(
        &self,
        key: &str,
        upload: &UploadId,
        offset: u64,
        len: u64,
        body: impl Stream<Item = Result<Bytes, Error>> + Send,
    ) -> Result<Tag, Error> {
        let mut body = std::pin::pin!(body);
        let (key, upload) = (key.to_owned(), upload.clone());
        let begin = move |tree: &Tree| Part::begin(tree, &key, &upload, offset);
        let mut part = self.blocking(RequestClass::Part, begin).await?;
        while let Some(piece) = body.try_next().await? {
            if part.len() + piece.len() as u64 > len {
                return Err(other_length(len));
            }
            self.counters.send(piece.len() as u64);
            let write = move |tree: &Tree| {
                part.write(tree, &piece)?;
                Ok(part)
            };
            part = self.going_on(write).await?;
        }
        if part.len() != len {
            return Err(other_length(len));
        }
        self.going_on(|tree| part.end(tree)).await
    }

    pub(crate) async fn delete(&self, key: &str, tag: &Tag) -> Result<(), Error> {
        let (key, tag) = (key.to_owned(), tag.clone());
        self.blocking(RequestClass::Upload, move |tree| write::delete(tree, &key, &tag)).await
    }

    pub(crate) async fn unmark_directory(&self, prefix: &str) -> Result<bool, Error> {
        let prefix = prefix.to_owned();
        let work = move |tree: &Tree| write::remove_directory(tree, &prefix);
        self.blocking(RequestClass::Upload, work).await
    }

    pub(crate) async fn list_uploads_below(&self, prefix: &str) -> Result<UploadsPage, Error> {
        let prefix = prefix.to_owned();
        let work = move |tree: &Tree| write::uploads_below(tree, &prefix);
        let uploads = self.blocking(RequestClass::Upload, work).await?;
        Ok(UploadsPage { uploads, next: None })
    }

    pub(crate) async fn list_uploads(&self, key: &str) -> Result<Vec<UploadId>, Error> {
        let key = key.to_owned();
        self.blocking(RequestClass::Upload, move |tree| write::uploads(tree, &key)).await
    }

    pub(crate) async fn abort_upload(&self, key: &str, upload: &UploadId) -> Result<(), Error> {
        let (key, upload) = (key.to_owned(), upload.clone());
        self.blocking(RequestClass::Upload, move |tree| write::abort(tree, &key, &upload)).await
    }

    /// Tries it within a time. A file system that hangs, as one on a network does while its server
    /// is away, holds a thread until it answers; the next trial waits for that, no longer than its
    /// own time.
    pub(crate) async fn try_out(
        &self,
        trial: Trial,
        timeout: Duration,
    ) -> Result<Vec<Untried>, Error> {
        let work = move |tree: &Tree| {
            // Names are deleted by who may write to their directory, and uploads are names.
            tree.check(trial.write || trial.delete)?;
            let lacks = trial.read && !read::something(tree)?;
            Ok(if lacks { vec![Untried::NothingToRead] } else { Vec::new() })
        };
        self.within(timeout, work).await
    }

    /// Finds out whether the directory is there, and the one that it was.
    pub(crate) async fn answers(&self, timeout: Duration) -> Result<(), Error> {
        match self.within(timeout, Tree::check_known).await {
            Err(error @ (Error::NoBucket { .. } | Error::Unavailable { .. })) => Err(error),
            _ => Ok(()),
        }
    }

    async fn within<T: Send + 'static>(
        &self,
        timeout: Duration,
        work: impl FnOnce(&Tree) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tried = async {
            let turn = Arc::clone(&self.trying).lock_owned().await;
            let work = move |tree: &Tree| {
                // Given back when this ends, though nobody waits for it any more.
                let _turn = turn;
                work(tree)
            };
            self.blocking(RequestClass::Other, work).await
        };
        let ended = time::timeout(timeout, tried).await;
        ended.unwrap_or_else(|_| {
            self.counters.fail();
            Err(self.tree.hangs(timeout))
        })
    }

    fn sent(&self, body: &[Bytes]) {
        self.counters.send(body.iter().map(|bytes| bytes.len() as u64).sum());
    }

    /// Runs file operations where they may block.
    async fn blocking<T: Send + 'static>(
        &self,
        class: RequestClass,
        work: impl FnOnce(&Tree) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.counters.count(class);
        self.going_on(work).await
    }

    /// The same for what belongs to a request that was counted.
    async fn going_on<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tree) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tree = Arc::clone(&self.tree);
        let done = tokio::task::spawn_blocking(move || work(&tree)).await;
        let result =
            done.unwrap_or_else(|_| Err(Error::unavailable("the process is shutting down")));
        if result.is_err() {
            self.counters.fail();
        }
        result
    }
}

fn other_length(len: u64) -> Error {
    Error::invalid(format!("a part of {len} bytes came as another one"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_trial_of_a_file_system_that_hangs_ends_in_time_and_holds_one_thread() {
        let directory = Directory::new("/mnt/far".into(), Arc::default());
        let brief = Duration::from_millis(20);
        // The file system answers when the test says so.
        let (answer, asked) = mpsc::channel::<()>();
        let (begun, first) = mpsc::channel();
        let hangs = move |_: &Tree| {
            begun.send(()).unwrap();
            Ok(asked.recv().is_ok())
        };
        let error = directory.within(brief, hangs).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("/mnt/far") && said.contains("hang"), "{said}");
        first.recv().unwrap();
        // Another one begins nothing while it hangs, and does not wait longer for that.
        let second = |_: &Tree| -> Result<(), Error> { panic!("a second thread") };
        let error = directory.within(brief, second).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        answer.send(()).unwrap();
        assert_eq!(directory.within(Duration::from_secs(60), |_| Ok(7)).await, Ok(7));
    }
}
