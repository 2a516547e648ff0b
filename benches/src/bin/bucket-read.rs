//! Reads one object with parallel ranged GETs and throws the bytes away: what a bucket can give.
//!
//! The figure that a cold read through a mount is held against, in the same run on the same
//! machine.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use millrace_types::{ByteLen, MIB};
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, aws::AmazonS3Builder, path::Path};

/// Measures parallel ranged GETs of one object over `object_store`.
#[derive(Parser, Debug)]
struct Arguments {
    /// Address of the S3 server, such as `http://127.0.0.1:8333`.
    #[arg(long)]
    endpoint: String,
    /// The bucket.
    #[arg(long)]
    bucket: String,
    /// The object's key.
    #[arg(long)]
    key: String,
    /// GETs in flight.
    #[arg(long, default_value_t = 8)]
    parallel: usize,
    /// Bytes of one GET.
    #[arg(long, default_value = "8MiB")]
    part: ByteLen,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    anyhow::ensure!(arguments.parallel > 0 && arguments.part.0 > 0, "nothing to do");
    let store = AmazonS3Builder::from_env()
        .with_endpoint(&arguments.endpoint)
        .with_bucket_name(&arguments.bucket)
        .with_allow_http(true)
        .build()
        .context("opening the bucket")?;
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let key = Path::parse(&arguments.key)?;
    let size = store.head(&key).await.context("asking for the object's size")?.size;

    let begun = Instant::now();
    let part = arguments.part.0;
    let starts = (0..size.div_ceil(part)).map(|index| index * part);
    let read: u64 = stream::iter(starts)
        .map(|start| read_range(Arc::clone(&store), key.clone(), start..size.min(start + part)))
        .buffer_unordered(arguments.parallel)
        .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) })
        .await?;
    let seconds = begun.elapsed().as_secs_f64();
    anyhow::ensure!(read == size, "{read} bytes came of {size}");
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = read as f64 / MIB as f64 / seconds;
    #[expect(clippy::print_stdout, reason = "the result of the program")]
    {
        println!("{{\"bytes\": {read}, \"seconds\": {seconds:.3}, \"mib_per_second\": {rate:.1}}}");
    }
    Ok(())
}

async fn read_range(
    store: Arc<dyn ObjectStore>,
    key: Path,
    range: std::ops::Range<u64>,
) -> Result<u64> {
    let options = GetOptions { range: Some(range.into()), ..Default::default() };
    let mut bytes = store.get_opts(&key, options).await?.into_stream();
    let mut read = 0;
    while let Some(piece) = bytes.try_next().await? {
        read += piece.len() as u64;
    }
    Ok(read)
}
