//! The raw client: plain `object_store`, as everything that reads through Millrace is held against.

use std::{ops::Range, sync::Arc};

use anyhow::{Context as _, Result};
use futures::TryStreamExt as _;
use object_store::{
    GetOptions, ObjectStore,
    aws::{AmazonS3Builder, Checksum},
    path::Path,
};

/// Opens a bucket of the server at `endpoint`; credentials and region come from `AWS_*`. What is
/// put has a checksum, as S3's own clients of today put it.
///
/// # Errors
/// When the address or the environment makes no sense. Nothing is asked of the server.
pub fn open(endpoint: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    let store = AmazonS3Builder::from_env()
        .with_endpoint(endpoint)
        .with_bucket_name(bucket)
        .with_allow_http(true)
        .with_checksum_algorithm(Checksum::CRC64NVME)
        .build()
        .context("opening the bucket")?;
    Ok(Arc::new(store))
}

/// Reads an object, or a range of its bytes, and throws the bytes away; says how many came.
///
/// # Errors
/// When the bucket has no such object, or does not answer.
pub async fn read(
    store: Arc<dyn ObjectStore>,
    key: Path,
    range: Option<Range<u64>>,
) -> Result<u64> {
    let options = GetOptions { range: range.map(Into::into), ..Default::default() };
    let mut bytes = store.get_opts(&key, options).await?.into_stream();
    let mut read = 0;
    while let Some(piece) = bytes.try_next().await? {
        read += piece.len() as u64;
    }
    Ok(read)
}
