//! Reads one object with parallel ranged GETs and throws the bytes away: what a bucket can give.
//!
//! The figure that a cold read through a mount is held against, in the same run on the same
//! machine.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use millrace_benches::bucket;
use millrace_types::{ByteLen, MIB};
use object_store::{ObjectStoreExt, path::Path};

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
    let store = bucket::open(&arguments.endpoint, &arguments.bucket)?;
    let key = Path::parse(&arguments.key)?;
    let size = store.head(&key).await.context("asking for the object's size")?.size;

    let begun = Instant::now();
    let part = arguments.part.0;
    let starts = (0..size.div_ceil(part)).map(|index| index * part);
    let read: u64 = stream::iter(starts)
        .map(|start| {
            bucket::read(Arc::clone(&store), key.clone(), Some(start..size.min(start + part)))
        })
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
