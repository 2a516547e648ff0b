//! Real disks: a directory, an image file, and a loop device, which needs root and `losetup`.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_storage_target::{
    disk::{Backing, DiskEngine, Operation, Place, cuts::Cuts, faulty::Faults, place::PlaceKind},
    format::superblock::Layout,
    volume::{Blank, OpenError},
};
use millrace_types::TargetId;
use tempfile::TempDir;

use super::{
    ground::{Directory, Ground, Parts},
    loop_device::LoopDevice,
    model::PAGE,
};

/// The smallest ring and two regions.
const LEN: u64 = (256 + 4096 + 2 * 8192) * PAGE as u64;

/// A place on a disk of this machine.
pub(crate) struct Real {
    /// Detached before the file under it is removed.
    _device: Option<LoopDevice>,
    _home: TempDir,
    /// What is opened.
    path: PathBuf,
    /// What the bytes are in.
    file: PathBuf,
    engine: DiskEngine,
    faults: Faults,
    cuts: Cuts,
}

impl Real {
    /// A blank one; `None` where there are no loop devices and need not be any, which is said.
    pub(crate) fn blank(kind: PlaceKind, engine: DiskEngine) -> Option<Directory> {
        Self::cut_short(kind, engine, &Cuts::default())
    }

    /// The same, under a kernel that does less than it is asked for.
    pub(crate) fn cut_short(kind: PlaceKind, engine: DiskEngine, cuts: &Cuts) -> Option<Directory> {
        let home = tempfile::tempdir().unwrap();
        let image = home.path().join("image");
        let (path, file, device) = match kind {
            PlaceKind::Directory => (home.path().to_owned(), home.path().join("store"), None),
            PlaceKind::Image => (made(&image), image, None),
            PlaceKind::Device => {
                let device = LoopDevice::attach(&made(&image))?;
                (device.0.clone(), device.0.clone(), Some(device))
            }
        };
        let faults = Faults::default();
        let real = Self {
            _device: device,
            _home: home,
            path,
            file,
            engine,
            faults: faults.clone(),
            cuts: cuts.clone(),
        };
        Some(Directory::on(Arc::new(real), faults))
    }
}

impl Ground for Real {
    fn parts(&self) -> Result<Parts, OpenError> {
        let place = Arc::new(Place::open(&self.path, true)?.cut_short(&self.cuts));
        let capacity = match place.kind() {
            PlaceKind::Directory => LEN,
            PlaceKind::Device | PlaceKind::Image => place.len_bytes().map_err(OpenError::Length)?,
        };
        let capacity = capacity / PAGE as u64;
        let layout = Layout::new(capacity).unwrap();
        let disk = place.start(self.engine).map_err(OpenError::Start)?;
        let blank = Blank { target: TargetId([7; 8]), layout };
        Ok(Parts { disk, backing: place, capacity, blank })
    }

    fn changes(&self) -> u64 {
        self.faults.calls()
    }

    fn fail(&self, operation: Operation, nth: u64, os_error: i32) {
        self.faults.fail(operation, nth, os_error);
    }

    fn outlives_volumes(&self) -> bool {
        true
    }

    fn flip(&self, offset: u64, bit: u8) {
        let file = OpenOptions::new().read(true).write(true).open(&self.file).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        byte[0] ^= 1 << bit;
        file.write_all_at(&byte, offset).unwrap();
        // Direct I/O sees what is on the disk.
        file.sync_all().unwrap();
    }
}

fn made(image: &Path) -> PathBuf {
    File::create(image).unwrap().set_len(LEN).unwrap();
    image.to_owned()
}
