//! One bucket, whatever kind it is: limits and counters before, the kind's own code behind.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::Stream;
use millrace_types::MIB;

use crate::{
    Condition, Continuation, Counters, Error, Head, HeldPart, LinkSpec, Location, Metadata, Page,
    PartPlace, Settings, Stored, Tag, UploadId, UploadedPart, UploadsPage,
    azure::Azure,
    directory::Directory,
    google::Google,
    limits::{Limits, Requests},
    object::{PARTS_MAX, check_key, check_prefix},
    pace::Pace,
    s3::S3,
};

pub use self::body::RangeBody;
use self::fallback::{held, unmark};

mod absence;
mod body;
mod fallback;
mod trial;
pub(crate) mod whole;

/// What a part that is streamed counts for among the bytes in flight: no more is in memory.
const STREAM_WINDOW: u64 = 8 * MIB;

/// An open bucket. Cheap to share; every operation may run at the same time as any other.
///
/// # Contract
/// Keys are whole keys within the bucket (the link's prefix included). A key that is no path of
/// file names is refused with [`Error::Invalid`].
///
/// # Durability
/// A put or completion that returned is stored as the bucket stores things: in a cloud at once; in
/// a `file://` directory after fsync of file and directory.
///
/// # Cancellation
/// Every future may be dropped at any time. What a dropped put, part or completion did is unknown:
/// repeat it, or settle it by [`Bucket::head`].
///
/// # Errors
/// Transient failures are repeated within [`Settings::retries_max`] before they are returned.
#[derive(Debug)]
pub struct Bucket {
    kind: Kind,
    limits: Limits,
    counters: Arc<Counters>,
    patience: Duration,
    check_timeout: Duration,
    name: String,
}

/// What clouds do takes long, and futures of some KiB: those of Google and Azure are boxed, so that
/// what waits for a bucket stays small.
#[derive(Debug)]
enum Kind {
    S3(Box<S3>),
    Google(Box<Google>),
    Azure(Box<Azure>),
    Directory(Directory),
}

impl Bucket {
    /// Opens the bucket of a link. Asks nobody: see [`Bucket::check`].
    ///
    /// # Errors
    /// [`Error::Denied`] when the named credentials cannot be read, [`Error::Invalid`] when the
    /// environment's settings make no sense.
    pub fn open(spec: &LinkSpec, settings: &Settings) -> Result<Self, Error> {
        let counters = Arc::new(Counters::default());
        let requests = Arc::new(Requests::new(settings.requests_in_flight_max));
        let (counted, paced) = (Arc::clone(&counters), Arc::clone(&requests));
        let kind = match spec.location() {
            Location::S3 { bucket, .. } => {
                Kind::S3(Box::new(S3::open(spec, bucket, settings, counted, paced)?))
            }
            Location::Google { bucket, .. } => {
                Kind::Google(Box::new(Google::open(spec, bucket, settings, counted, paced)?))
            }
            Location::Azure { container, .. } => {
                Kind::Azure(Box::new(Azure::open(spec, container, settings, counted, paced)?))
            }
            Location::Directory { root } => Kind::Directory(Directory::new(root.clone(), counted)),
        };
        let name = spec.without_prefix().url_of("");
        let (limits, patience) = (Limits::new(settings, requests), settings.read_timeout);
        let check_timeout = settings.check_timeout;
        Ok(Self { kind, limits, counters, patience, check_timeout, name })
    }

    /// What has been asked of it so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many requests this process has in flight at most: [`Settings::requests_in_flight_max`],
    /// or fewer since the bucket asked to slow down.
    #[must_use]
    pub fn requests_limit(&self) -> usize {
        self.limits.requests()
    }

    /// The bucket's URL without a prefix: a label for logs and metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Some entries of the directory `prefix` (empty, or ending in `/`), from where `after` says.
    ///
    /// A key below `prefix` that goes on after a `/` is a directory. An object whose key is
    /// `prefix` itself is the mark that some tools make for a directory, and no entry: one that has
    /// bytes is left out. Where `a` and `a/b` both exist, both an object and a directory `a` are
    /// returned, perhaps on different pages.
    ///
    /// # Errors
    /// [`Error::NoBucket`]; a prefix below which nothing lies is an empty page.
    pub async fn list_directory(
        &self,
        prefix: &str,
        after: Option<&Continuation>,
    ) -> Result<Page, Error> {
        check_prefix(prefix)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => s3.list_directory(prefix, after).await,
            Kind::Google(google) => Box::pin(google.list_directory(prefix, after)).await,
            Kind::Azure(azure) => Box::pin(azure.list_directory(prefix, after)).await,
            Kind::Directory(directory) => directory.list(prefix, after).await,
        }
    }

    /// Whether a listing may begin behind any name, at no higher cost than at the start.
    #[must_use]
    pub fn lists_ranges(&self) -> bool {
        match &self.kind {
            Kind::S3(_) | Kind::Google(_) => true,
            // Azure's begin at their start only, in the version of its interface that is spoken
            // (`startFrom` came with 2026-02-06); each page of a directory reads all of it.
            Kind::Azure(_) | Kind::Directory(_) => false,
        }
    }

    /// Whether any key starts with `prefix` (which ends in `/`): whether it is a directory.
    ///
    /// # Errors
    /// Those of access.
    pub async fn has_below(&self, prefix: &str) -> Result<bool, Error> {
        check_prefix(prefix)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => s3.has_below(prefix).await,
            Kind::Google(google) => Box::pin(google.has_below(prefix)).await,
            Kind::Azure(azure) => Box::pin(azure.has_below(prefix)).await,
            Kind::Directory(directory) => directory.has_below(prefix).await,
        }
    }

    /// Version, size and user metadata of one object.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none, as far as HEAD tells: before anything is taken away
    /// because of that, ask [`Self::look`].
    pub async fn head(&self, key: &str) -> Result<Head, Error> {
        check_key(key)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => s3.head(key).await,
            Kind::Google(google) => Box::pin(google.head(key)).await,
            Kind::Azure(azure) => Box::pin(azure.head(key)).await,
            Kind::Directory(directory) => directory.head(key).await,
        }
    }

    /// Metadata of the object that marks the directory `prefix` (ending in `/`), if it has one.
    ///
    /// # Errors
    /// [`Error::NotFound`] when no object has this very key.
    pub async fn head_directory(&self, prefix: &str) -> Result<Metadata, Error> {
        check_prefix(prefix)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => s3.head_directory(prefix).await,
            Kind::Google(google) => Box::pin(google.head_directory(prefix)).await,
            Kind::Azure(azure) => Box::pin(azure.head_directory(prefix)).await,
            Kind::Directory(directory) => directory.head_directory(prefix).await,
        }
    }

    /// Marks `prefix` (ending in `/`) as a directory, by an empty object of this very key, so that
    /// it exists with nothing in it. One that is marked already stays as it is.
    ///
    /// # Errors
    /// Those of access.
    pub async fn mark_directory(&self, prefix: &str, metadata: &Metadata) -> Result<(), Error> {
        check_prefix(prefix)?;
        if prefix.is_empty() {
            return Ok(());
        }
        let _permit = self.limits.acquire(0).await?;
        let made = match &self.kind {
            Kind::S3(s3) => Box::pin(s3.mark_directory(prefix, metadata)).await,
            Kind::Google(google) => Box::pin(google.mark_directory(prefix, metadata)).await,
            Kind::Azure(azure) => Box::pin(azure.mark_directory(prefix, metadata)).await,
            Kind::Directory(directory) => directory.mark_directory(prefix, metadata).await,
        };
        match made {
            Err(Error::Changed { .. }) => Ok(()),
            other => other,
        }
    }

    /// Bytes of one version of an object, handed on as they arrive. `range` must lie within the
    /// object. An interrupted body is continued where it stopped, of the same version.
    ///
    /// # Errors
    /// [`Error::Changed`] when the object is another version by now; on the stream too.
    pub async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        if_match: &Tag,
    ) -> Result<RangeBody, Error> {
        check_key(key)?;
        if range.is_empty() {
            return Ok(RangeBody::empty());
        }
        let len = range.end - range.start;
        let permit = self.limits.acquire(len).await?;
        let stream = match &self.kind {
            Kind::S3(s3) => s3.get_range(key, range, if_match).await?,
            Kind::Google(google) => Box::pin(google.get_range(key, range, if_match)).await?,
            Kind::Azure(azure) => Box::pin(azure.get_range(key, range, if_match)).await?,
            Kind::Directory(directory) => directory.get_range(key, range, if_match).await?,
        };
        let pace = Pace::new(self.patience);
        Ok(RangeBody::new(stream, len, permit, Arc::clone(&self.counters), pace))
    }

    /// Stores a whole object, and tells whether the bucket says that it has all of it. For objects
    /// of some MiB; larger ones go by parts.
    ///
    /// # Errors
    /// [`Error::Changed`] when the condition does not hold. After [`Error::is_unclear`] the object
    /// may be stored.
    pub async fn put_small(
        &self,
        key: &str,
        body: Vec<Bytes>,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Stored, Error> {
        check_key(key)?;
        let _permit = self.limits.acquire(len_of(&body)).await?;
        let tag = match &self.kind {
            Kind::S3(s3) => {
                return Box::pin(s3.put_small(key, body, metadata, condition)).await;
            }
            Kind::Google(google) => {
                return Box::pin(google.put_small(key, body, metadata, condition)).await;
            }
            Kind::Azure(azure) => Box::pin(azure.put_small(key, body, metadata, condition)).await?,
            Kind::Directory(directory) => directory.put(key, body, metadata, condition).await?,
        };
        Ok(Stored::unchecked(tag))
    }

    /// Deletes an object, if it is still this version. One that is surely gone already is no error.
    ///
    /// Where the server knows no condition on a deletion, the version is looked at just before.
    ///
    /// # Errors
    /// [`Error::Changed`] when it is another version; those of access (on S3 it takes the right
    /// `s3:DeleteObject`).
    pub async fn delete(&self, key: &str, if_match: &Tag) -> Result<(), Error> {
        check_key(key)?;
        let _permit = self.limits.acquire(0).await?;
        let deleted = match &self.kind {
            Kind::S3(s3) => s3.delete(key, if_match).await,
            Kind::Google(google) => google.delete(key, if_match).await,
            Kind::Azure(azure) => azure.delete(key, if_match).await,
            Kind::Directory(directory) => directory.delete(key, if_match).await,
        };
        match deleted {
            Err(Error::NotFound { .. }) => self.check_absent(key).await,
            other => other,
        }
    }

    /// Takes the mark of the directory `prefix` (ending in `/`) away. Tells whether it is gone: not
    /// so an object of this key that has bytes, nor a directory of a `file://` bucket that has
    /// anything in it.
    ///
    /// # Errors
    /// Those of access.
    pub async fn unmark_directory(&self, prefix: &str) -> Result<bool, Error> {
        check_prefix(prefix)?;
        if prefix.is_empty() {
            return Ok(false);
        }
        let _permit = self.limits.acquire(0).await?;
        let unmarked = match &self.kind {
            Kind::S3(s3) => s3.unmark_directory(prefix).await,
            Kind::Google(google) => {
                let delete = async |tag: &Tag| google.delete(prefix, tag).await;
                unmark(google.head(prefix).await, delete).await
            }
            Kind::Azure(azure) => {
                let delete = async |tag: &Tag| azure.delete(prefix, tag).await;
                unmark(azure.head(prefix).await, delete).await
            }
            Kind::Directory(directory) => directory.unmark_directory(prefix).await,
        };
        match unmarked {
            Err(Error::NotFound { .. }) => self.check_absent(prefix).await.map(|()| true),
            other => other,
        }
    }

    /// Begins an upload by parts. Nothing is visible before its completion.
    ///
    /// # Errors
    /// Those of access.
    pub async fn create_upload(&self, key: &str, metadata: &Metadata) -> Result<UploadId, Error> {
        check_key(key)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => Box::pin(s3.create_upload(key, metadata)).await,
            Kind::Google(google) => Box::pin(google.create_upload(key, metadata)).await,
            Kind::Azure(azure) => Box::pin(azure.create_upload(key, metadata)).await,
            Kind::Directory(directory) => directory.create_upload(key, metadata).await,
        }
    }

    /// Stores one part: the object's bytes from `offset` on. Sending a part again replaces it.
    ///
    /// Clouds go by the number alone, so numbers must follow the order of offsets, and all parts
    /// but the last have 5 MiB at least; a directory goes by the offset alone.
    ///
    /// # Errors
    /// [`Error::NoUpload`] when the upload is over.
    pub async fn put_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        offset: u64,
        body: Vec<Bytes>,
    ) -> Result<UploadedPart, Error> {
        check_key(key)?;
        if !(1..=PARTS_MAX).contains(&number) {
            return Err(Error::invalid(format!("part {number} is not from 1 to {PARTS_MAX}")));
        }
        let len = len_of(&body);
        let _permit = self.limits.acquire(len).await?;
        let tag = match &self.kind {
            Kind::S3(s3) => Box::pin(s3.put_part(key, upload, number, body)).await?,
            Kind::Google(google) => Box::pin(google.put_part(key, upload, number, body)).await?,
            Kind::Azure(azure) => Box::pin(azure.put_part(key, upload, number, body)).await?,
            Kind::Directory(directory) => directory.put_part(key, upload, offset, body).await?,
        };
        Ok(UploadedPart { number, tag, len })
    }

    /// Stores one part as [`Self::put_part`] does, however large, without holding it in memory:
    /// `read` begins to read its `len` bytes, in pieces, and is called again for each attempt, and
    /// once more where the bytes must be signed beforehand. On `gs://` and `az://` the part is held
    /// in memory, and has 64 MiB at most.
    ///
    /// # Errors
    /// As [`Self::put_part`], and those of `read`; [`Error::Unsupported`] for a part that is too
    /// large for this kind of bucket.
    pub async fn put_part_streamed<F, S>(
        &self,
        key: &str,
        upload: &UploadId,
        part: PartPlace,
        read: F,
    ) -> Result<UploadedPart, Error>
    where
        F: Fn() -> S + Send + Sync,
        S: Stream<Item = Result<Bytes, Error>> + Send + 'static,
    {
        check_key(key)?;
        let PartPlace { number, offset, len } = part;
        if !(1..=PARTS_MAX).contains(&number) {
            return Err(Error::invalid(format!("part {number} is not from 1 to {PARTS_MAX}")));
        }
        let in_memory = match &self.kind {
            Kind::S3(_) | Kind::Directory(_) => len.min(STREAM_WINDOW),
            Kind::Google(_) | Kind::Azure(_) => len,
        };
        let _permit = self.limits.acquire(in_memory).await?;
        let tag = match &self.kind {
            Kind::Google(google) => {
                google.put_part(key, upload, number, held(read(), len).await?).await?
            }
            Kind::Azure(azure) => {
                azure.put_part(key, upload, number, held(read(), len).await?).await?
            }
            Kind::S3(s3) => Box::pin(s3.put_part_streamed(key, upload, number, len, read)).await?,
            Kind::Directory(directory) => {
                directory.put_part_streamed(key, upload, offset, len, read()).await?
            }
        };
        Ok(UploadedPart { number, tag, len })
    }

    /// The parts that the bucket surely has, by number, and what it tells of their bytes: on Azure
    /// nothing. One that was sent twice may be left out.
    ///
    /// # Errors
    /// [`Error::NoUpload`] when the upload is over; [`Error::Unsupported`] for a directory, which
    /// does not know parts: send them again.
    pub async fn list_parts(&self, key: &str, upload: &UploadId) -> Result<Vec<HeldPart>, Error> {
        check_key(key)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => s3.list_parts(key, upload).await,
            Kind::Google(google) => Box::pin(google.list_parts(key, upload)).await,
            Kind::Azure(azure) => Box::pin(azure.list_parts(key, upload)).await,
            Kind::Directory(_) => Err(Error::Unsupported {
                message: "a directory does not know which parts it has".to_owned(),
            }),
        }
    }

    /// Makes the object out of its parts, if the condition holds: whole or not at all.
    ///
    /// On S3, where the server may know no condition here, it is looked at just before, too.
    ///
    /// # Errors
    /// [`Error::Changed`] when the condition does not hold; the upload is then still there, to be
    /// aborted. After [`Error::is_unclear`] the object may be there: settle it by HEAD.
    pub async fn complete_upload(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[UploadedPart],
        condition: &Condition,
    ) -> Result<Tag, Error> {
        check_key(key)?;
        check_parts(parts)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => Box::pin(s3.complete_upload(key, upload, parts, condition)).await,
            Kind::Google(google) => {
                Box::pin(google.complete_upload(key, upload, parts, condition)).await
            }
            Kind::Azure(azure) => {
                Box::pin(azure.complete_upload(key, upload, parts, condition)).await
            }
            Kind::Directory(directory) => {
                let size = parts.iter().map(|part| part.len).sum();
                directory.complete_upload(key, upload, size, condition).await
            }
        }
    }

    /// Uploads of this key that were begun, by whomever, and not ended; at most 1,000.
    ///
    /// # Errors
    /// Those of access: on S3 it takes the right `s3:ListBucketMultipartUploads`.
    pub async fn list_uploads(&self, key: &str) -> Result<Vec<UploadId>, Error> {
        check_key(key)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => s3.list_uploads(key).await,
            Kind::Google(google) => Box::pin(google.list_uploads(key)).await,
            Kind::Azure(azure) => Box::pin(azure.list_uploads(key)).await,
            Kind::Directory(directory) => directory.list_uploads(key).await,
        }
    }

    /// Uploads of all keys that begin with `prefix` (empty, or ending in `/`) that were begun, by
    /// whomever, and not ended; some of them, from where `after` says.
    ///
    /// # Errors
    /// As [`Self::list_uploads`].
    pub async fn list_uploads_below(
        &self,
        prefix: &str,
        after: Option<&Continuation>,
    ) -> Result<UploadsPage, Error> {
        check_prefix(prefix)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => s3.list_uploads_below(prefix, after).await,
            Kind::Google(google) => google.list_uploads_below(prefix, after).await,
            Kind::Azure(azure) => azure.list_uploads_below(prefix, after).await,
            Kind::Directory(directory) => directory.list_uploads_below(prefix).await,
        }
    }

    /// Gives an upload up and frees its parts. Aborting one that is over is no error.
    ///
    /// # Errors
    /// Those of access.
    pub async fn abort_upload(&self, key: &str, upload: &UploadId) -> Result<(), Error> {
        check_key(key)?;
        let _permit = self.limits.acquire(0).await?;
        let result = match &self.kind {
            Kind::S3(s3) => s3.abort_upload(key, upload).await,
            Kind::Google(google) => Box::pin(google.abort_upload(key, upload)).await,
            Kind::Azure(azure) => Box::pin(azure.abort_upload(key, upload)).await,
            Kind::Directory(directory) => directory.abort_upload(key, upload).await,
        };
        match result {
            Err(Error::NoUpload { .. } | Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}

fn len_of(body: &[Bytes]) -> u64 {
    body.iter().map(|bytes| bytes.len() as u64).sum()
}

fn check_parts(parts: &[UploadedPart]) -> Result<(), Error> {
    let ordered = parts.windows(2).all(|pair| pair[0].number < pair[1].number);
    if parts.is_empty() || parts.len() > usize::from(PARTS_MAX) || !ordered {
        return Err(Error::invalid("an upload is completed with 1 to 10,000 parts in order"));
    }
    Ok(())
}
