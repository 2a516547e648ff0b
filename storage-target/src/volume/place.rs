//! Opening a target where it lies: in a directory, on a device or in an image file.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use millrace_types::{ByteLen, ClusterId, MIB, TargetId};

use super::{
    Blank, Growth, OpenError, Options, Origin, Volume, boot::with_attachment, open::bytes,
    reopen::PAUSES,
};
use crate::{
    disk::{Backing, BufferPool, DiskEngine, Place, PlaceError, place::PlaceKind},
    format::{batch::BootId, superblock::Layout},
    page_checksum::PAGE,
};

/// What is left to others when the capacity is taken from the file system.
const LEFT_TO_OTHERS: u64 = 256 * MIB;

/// Which target is opened, and how.
#[derive(Clone, Debug)]
pub struct PlaceOptions {
    /// A directory, a block device, or a file that is there.
    pub path: PathBuf,
    /// The cluster that the target must belong to; a blank place becomes one of it.
    pub cluster: ClusterId,
    /// The id for a blank place. `None` refuses one.
    pub new_target: Option<TargetId>,
    /// The most bytes that the target may take. `None`: the whole device or file; in a directory
    /// what the file system has free, less 256 MiB.
    pub capacity: Option<ByteLen>,
    /// Which disk engine.
    pub disk_engine: DiskEngine,
    /// Longest time that an acknowledged write stays unsynced.
    pub sync_interval: Duration,
    /// The kernel's boot id.
    pub boot: BootId,
    /// Bytes of index nodes kept in memory.
    pub cache_bytes: usize,
}

impl Volume {
    /// Opens the target at a path, recovering as needed; makes one where there is none. The path
    /// is locked until [`Volume::close`] returns or the volume is dropped; one that another process
    /// has is waited for, 5 seconds at most. When its journal fails it is opened again in place,
    /// as often as needed.
    ///
    /// # Errors
    /// [`OpenError`], which names the path; what was durable is then as it was.
    pub async fn open_at(options: &PlaceOptions, pool: BufferPool) -> Result<Self, OpenError> {
        let first = PlaceOrigin { options: options.clone(), pool: pool.clone() };
        let opening = first.open().await?;
        let volume = match Self::open(&opening).await {
            Ok(volume) => volume,
            Err(OpenError::Blank) if options.new_target.is_some() => {
                let capacity = opening.growth.as_ref().map_or(0, |growth| growth.capacity);
                return Err(PlaceError::TooSmall {
                    path: options.path.clone(),
                    found: bytes(capacity),
                    min: bytes(Layout::capacity_min()),
                }
                .into());
            }
            Err(error) => return Err(options.at_path(error)),
        };
        // Later it is there, or the disk is another one.
        let options = PlaceOptions { new_target: None, ..options.clone() };
        Ok(volume.lasting(Arc::new(PlaceOrigin { options, pool }), PAUSES))
    }
}

/// A place as the origin of its target's disk.
#[derive(Debug)]
struct PlaceOrigin {
    options: PlaceOptions,
    pool: BufferPool,
}

impl Origin for PlaceOrigin {
    fn open(&self) -> BoxFuture<'_, Result<Options, OpenError>> {
        Box::pin(async move {
            let (path, make) = (self.options.path.clone(), self.options.new_target.is_some());
            let opening = tokio::task::spawn_blocking(move || Place::open(&path, make));
            let place = opening.await.map_err(|panic| OpenError::Start(panic.into()))??;
            self.open_in(Arc::new(place)).map_err(|error| self.options.at_path(error))
        })
    }
}

impl PlaceOrigin {
    fn open_in(&self, place: Arc<Place>) -> Result<Options, OpenError> {
        let options = &self.options;
        let capacity = capacity(options, &place)?;
        let blank = options
            .new_target
            .and_then(|target| Layout::new(capacity).map(|layout| Blank { target, layout }));
        let disk = place.start(options.disk_engine).map_err(OpenError::Start)?;
        let is_direct = place.is_direct();
        let (path, kind, attachment) = (options.path.display(), place.kind(), place.attachment());
        let name = disk.name();
        tracing::debug!(%path, ?kind, is_direct, disk = name, ?attachment, "opening a target");
        Ok(Options {
            cluster: options.cluster,
            blank,
            disk,
            growth: Some(Growth { backing: place, capacity }),
            pool: self.pool.clone(),
            cache_bytes: options.cache_bytes,
            sync_interval: options.sync_interval,
            boot: with_attachment(options.boot, attachment),
        })
    }
}

impl PlaceOptions {
    /// An error with the path, if it does not name it itself.
    fn at_path(&self, error: OpenError) -> OpenError {
        match error {
            OpenError::Place(error) => OpenError::Place(error),
            error => OpenError::At { path: self.path.clone(), source: Box::new(error) },
        }
    }
}

/// Pages that the target may take.
fn capacity(options: &PlaceOptions, place: &Place) -> Result<u64, OpenError> {
    let len = place.len_bytes().map_err(OpenError::Length)?;
    let capacity = match (place.kind(), options.capacity) {
        (PlaceKind::Directory, Some(capacity)) => capacity.0,
        (PlaceKind::Directory, None) => {
            let room = place.room_bytes().map_err(OpenError::Length)?;
            len + room.saturating_sub(LEFT_TO_OTHERS)
        }
        (PlaceKind::Device | PlaceKind::Image, capacity) => {
            capacity.map_or(len, |capacity| capacity.0.min(len))
        }
    };
    Ok(capacity / PAGE as u64)
}

#[cfg(test)]
mod tests;
