//! The raw client: what `object_store` gets of the bucket by itself.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use millrace_benches::bucket;
use object_store::{ObjectStore, ObjectStoreExt as _, path::Path};

type Store = Arc<dyn ObjectStore>;

/// Reads whole objects, or [`PART`] at a time where they are larger, so many GETs in flight.
pub(crate) async fn read(store: Store, objects: Vec<(Path, u64)>, parallel: usize) -> Result<()> {
    let expected: u64 = objects.iter().map(|(_, bytes)| bytes).sum();
    let pieces = objects.into_iter().flat_map(|(key, bytes)| {
        parts(bytes).map(move |range| (key.clone(), (bytes > PART as u64).then_some(range)))
    });
    let read: u64 = stream::iter(pieces)
        .map(|(key, range)| bucket::read(Arc::clone(&store), key, range))
        .buffer_unordered(parallel)
        .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) })
        .await?;
    ensure!(read == expected, "{read} bytes came of {expected}");
    Ok(())
}

/// How long the first byte of an object takes to come. The rest is read too.
pub(crate) async fn first_byte(store: &Store, key: &Path) -> Result<Duration> {
    let begun = Instant::now();
    let mut bytes = store.get(key).await?.into_stream();
    let first = bytes.try_next().await?;
    let took = begun.elapsed();
    ensure!(first.is_some_and(|piece| !piece.is_empty()), "{key} is empty");
    while bytes.try_next().await?.is_some() {}
    Ok(took)
}

/// Puts objects of this content, which is [`PART`] long; larger ones have it again and again, in
/// parts. 64 small objects and parts are in flight at most, 16 of them of one object.
pub(crate) async fn put(store: Store, objects: Vec<(Path, u64)>, content: Bytes) -> Result<()> {
    // The large ones first, so that their parts are under way to the end.
    let (large, small): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|(_, bytes)| *bytes > PART as u64);
    let large = put_large(&store, large, &content);
    let small = stream::iter(small)
        .map(|(key, bytes)| {
            let (store, content) = (Arc::clone(&store), content.clone());
            async move {
                let bytes = usize::try_from(bytes).expect("no more than a part");
                store.put(&key, content.slice(..bytes).into()).await.map(|_| ())
            }
        })
        .buffer_unordered(SMALL_IN_FLIGHT)
        .try_for_each(|()| async { Ok(()) });
    tokio::try_join!(large, async { Ok(small.await?) })?;
    Ok(())
}

async fn put_large(store: &Store, large: Vec<(Path, u64)>, content: &Bytes) -> Result<()> {
    stream::iter(large)
        .map(|(key, bytes)| async move {
            let mut upload = store.put_multipart(&key).await?;
            // A part is put when its future is polled; the order of these calls is that of the
            // parts.
            let puts: Vec<_> = parts(bytes)
                .map(|range| {
                    let bytes = usize::try_from(range.end - range.start).expect("a part");
                    upload.put_part(content.slice(..bytes).into())
                })
                .collect();
            let puts = stream::iter(puts).buffer_unordered(LARGE_IN_FLIGHT / LARGE_FILES);
            puts.try_for_each(|()| async { Ok(()) }).await?;
            upload.complete().await?;
            Ok(())
        })
        .buffer_unordered(LARGE_FILES)
        .try_for_each(|()| async { Ok(()) })
        .await
}

/// Lists a directory and those in it, 16 at a time; says how many objects there are.
pub(crate) async fn list(store: Store, prefix: Path) -> Result<usize> {
    let top = store.list_with_delimiter(Some(&prefix)).await?;
    let below: usize = stream::iter(top.common_prefixes)
        .map(|prefix| {
            let store = Arc::clone(&store);
            // Boxed: the compiler does not see that it may go to another thread otherwise.
            let listing: BoxFuture<'_, Result<usize>> = Box::pin(async move {
                Ok(store.list_with_delimiter(Some(&prefix)).await?.objects.len())
            });
            listing
        })
        .buffer_unordered(LISTINGS)
        .try_fold(0, |sum, names| async move { Ok(sum + names) })
        .await?;
    Ok(top.objects.len() + below)
}

/// How many objects there are below a prefix.
pub(crate) async fn list_all(store: &Store, prefix: Path) -> Result<usize> {
    Ok(store.list(Some(&prefix)).try_fold(0, |sum, _| async move { Ok(sum + 1) }).await?)
}

fn parts(bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let part = PART as u64;
    (0..bytes.div_ceil(part)).map(move |nth| nth * part..bytes.min((nth + 1) * part))
}

/// Bytes of a ranged GET, and of a part of an upload.
pub(crate) const PART: usize = 8 << 20;
/// GETs of small objects in flight.
pub(crate) const GETS: usize = 64;
const SMALL_IN_FLIGHT: usize = 48;
const LARGE_IN_FLIGHT: usize = 16;
const LARGE_FILES: usize = 4;
const LISTINGS: usize = 16;
