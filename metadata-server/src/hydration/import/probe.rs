//! One name asked for alone: HEAD of its key, and whether anything lies below `name/`.
//!
//! What is refused is asked for again between two listings that worked, so that credentials that
//! have just ended cost no name its attributes: see `attributes`.

use millrace_object_source::{Bucket, Error, Head, PosixAttributes, StoredSymlink};
use millrace_protocol::admin::AttributeSource;
use millrace_types::{Failure, FileName};

use super::{
    Importer, Linked,
    attributes::{self, Refusal, Told},
    entries::{Found, key_of},
};
use crate::hydration::environment::Environment;

impl<E: Environment> Importer<E> {
    /// Imports `name` if the bucket has it.
    pub(super) async fn probe(&self, linked: &Linked, name: &FileName) -> Result<(), Failure> {
        let _turn = self.turns.of(linked.link).probe().await?;
        let Ok(text) = std::str::from_utf8(name.as_bytes()) else {
            // Keys are UTF-8: no bucket has such a name.
            return Ok(());
        };
        let bucket = self.bucket(&linked.bucket)?;
        let asked = self.environment.now();
        let mut told = ask(&bucket, linked, name, text).await?;
        if matches!(told, Some((_, Some(_)))) {
            bucket.has_below(&linked.prefix).await?;
            told = ask(&bucket, linked, name, text).await?;
        }
        let Some((found, refusal)) = told else { return Ok(()) };
        attributes::accept(&bucket, linked, refusal.as_slice()).await?;
        self.import(linked.directory, asked, vec![found]).await.map(|_| ())
    }
}

/// What a bucket has under a name: where the object is refused, what a listing shows of it.
async fn ask(
    bucket: &Bucket,
    linked: &Linked,
    name: &FileName,
    text: &str,
) -> Result<Option<Told>, Failure> {
    let below = format!("{}{text}/", linked.prefix);
    let key = key_of(&linked.prefix, name);
    let (head, is_directory) = tokio::join!(bucket.head(&key), bucket.has_below(&below));
    match (head, is_directory) {
        // A key that no bucket can have is no error: the name just is not there.
        (_, Err(Error::Invalid { .. })) => Ok(None),
        (_, Ok(true)) => {
            let found = Found::directory(name.clone(), linked);
            match linked.attributes {
                AttributeSource::Listing => Ok(Some((found, None))),
                // No listing asks for it any more once it is known.
                AttributeSource::Objects => {
                    attributes::directory(bucket, &below, found).await.map(Some)
                }
            }
        }
        (Ok(head), Ok(false)) => object(bucket, &key, name, &head, linked).await.map(Some),
        (Err(Error::NotFound { .. } | Error::Invalid { .. }), Ok(false)) => Ok(None),
        (Err(error), Ok(false)) => listed(bucket, &key, name, error, linked).await,
        (Err(error), Err(_)) | (Ok(_), Err(error)) => Err(error.into()),
    }
}

/// What a listing shows of a key of which the bucket refuses to tell: it is there or not for those
/// who list its directory, and so for who looks it up before.
async fn listed(
    bucket: &Bucket,
    key: &str,
    name: &FileName,
    error: Error,
    linked: &Linked,
) -> Result<Option<Told>, Failure> {
    let refusal = Refusal::of(key, error)?;
    let Some(version) = bucket.listed(key).await? else { return Ok(None) };
    let found = Found::object(name.clone(), &version, PosixAttributes::default(), linked);
    Ok(Some((found, Some(refusal))))
}

/// What HEAD told of an object; the target of one that stores a symbolic link is fetched, unless
/// HEAD told that too. Where that is refused, it is the small file that a listing shows.
pub(super) async fn object(
    bucket: &Bucket,
    key: &str,
    name: &FileName,
    head: &Head,
    linked: &Linked,
) -> Result<Told, Failure> {
    let attributes = PosixAttributes::from_metadata(&head.metadata);
    let found = Found::object(name.clone(), &head.version, attributes, linked);
    match head.symlink() {
        None => return Ok((found, None)),
        Some(StoredSymlink::Target(target)) => {
            return Ok((found.into_symlink(target.as_bytes().to_vec()), None));
        }
        Some(StoredSymlink::Content) => {}
    }
    match bucket.get_whole(key, head.version.size, &head.version.tag).await {
        Ok(target) => Ok((found.into_symlink(target.to_vec()), None)),
        Err(error) => {
            let refusal = Refusal::of(key, error)?;
            let attributes = PosixAttributes::default();
            let listed = Found::object(name.clone(), &head.version, attributes, linked);
            Ok((listed, Some(refusal)))
        }
    }
}
