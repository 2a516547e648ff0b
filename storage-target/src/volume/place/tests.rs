use std::{fs::File, path::Path};

use super::*;
use crate::loop_device::LoopDevice;

const BOOT: BootId = BootId([5; 16]);

/// Which boot a target at a path is opened under.
async fn boot_at(path: &Path) -> BootId {
    let options = PlaceOptions {
        path: path.to_owned(),
        cluster: ClusterId([9; 16]),
        new_target: Some(TargetId([7; 8])),
        capacity: None,
        disk_engine: DiskEngine::Blocking,
        sync_interval: Duration::from_secs(3600),
        boot: BOOT,
        cache_bytes: 1 << 20,
    };
    let opened = PlaceOrigin { options, pool: BufferPool::new(0) }.open().await.unwrap();
    opened.disk.end().await;
    opened.boot
}

#[tokio::test]
async fn a_disk_that_is_attached_anew_has_another_boot() {
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("image");
    File::create(&image).unwrap().set_len(5 * MIB).unwrap();
    let mut boots = Vec::new();
    for _ in 0..2 {
        let Some(device) = LoopDevice::attach(&image) else { return };
        // Kernels before 5.15 do not say.
        let name = device.0.file_name().unwrap();
        let is_told = Path::new("/sys/class/block").join(name).join("diskseq").exists();
        let boot = boot_at(&device.0).await;
        assert_eq!(boot != BOOT, is_told);
        assert_eq!(boot_at(&device.0).await, boot, "it stayed");
        boots.extend(is_told.then_some(boot));
    }
    boots.dedup();
    assert_ne!(boots.len(), 1, "it came twice");
}
