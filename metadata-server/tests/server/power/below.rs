//! The store below a server, and what the end of a run makes of it.

use std::{path::Path, sync::Arc};

use millrace_metadata_server::{engine::StoreKind, store::Stores};
use millrace_runtime::Random;

use super::{folders::Folders, mounted::Mounted, stores::LossyStores, world::World};

/// Which store it is, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// One in memory.
    Memory,
    /// One of a real engine, in a folder.
    Folder(StoreKind),
    /// One of a real engine, on the disk that has log and snapshots.
    Disk(StoreKind),
}

/// The store, between runs.
pub(super) enum Below {
    Lossy(LossyStores),
    Folders(Folders),
    Mounted(Mounted),
}

impl Below {
    /// In `dir` where it has folders.
    pub(super) fn new(place: Place, world: &World, dir: &Path, random: Random) -> Self {
        match place {
            Place::Memory => Self::Lossy(LossyStores::new(random)),
            Place::Folder(kind) => Self::Folders(Folders::new(kind, dir.join("stores"), random)),
            Place::Disk(kind) => Self::Mounted(Mounted::new(world, kind, PROMPT, random)),
        }
    }

    pub(super) fn stores(&self) -> Arc<dyn Stores> {
        match self {
            Self::Lossy(stores) => Arc::new(stores.clone()),
            Self::Folders(folders) => Arc::new(folders.clone()),
            Self::Mounted(mounted) => Arc::new(mounted.clone()),
        }
    }
}

impl Place {
    /// The engine that is named in the settings.
    pub(super) fn kind(self) -> StoreKind {
        match self {
            Self::Memory => StoreKind::default(),
            Self::Folder(kind) | Self::Disk(kind) => kind,
        }
    }
}

/// Of a hundred batches so many bring the store to the disk: by itself it would not in so short a
/// run.
const PROMPT: u64 = 8;
