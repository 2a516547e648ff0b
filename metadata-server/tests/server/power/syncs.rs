//! A sync of the command log that fails, and drops what it was to bring to the disk.

use std::{path::PathBuf, sync::Arc, time::Duration};

use millrace_metadata_server::log::{LogSettings, Writer};
use millrace_runtime::Random;
use millrace_types::LogIndex;

use super::{
    disk::{Ending, Lie},
    world::World,
};
use crate::engine::CLUSTER;

fn open(world: &World) -> Writer {
    let settings = LogSettings {
        files: Arc::new(world.clone()),
        dir: PathBuf::from("log"),
        cluster: CLUSTER,
        segment_bytes: 1 << 20,
        // By hand alone.
        sync_interval: Duration::from_secs(3600),
        random: Random::seeded(2),
    };
    Writer::open(settings, LogIndex(0)).unwrap().0
}

#[test]
fn what_a_failed_sync_has_dropped_is_on_the_disk_after_the_next_start() {
    let world = World::new(Random::seeded(1), Lie::Nothing);
    let mut writer = open(&world);
    writer.append(b"one").unwrap();
    writer.syncer().sync_all().unwrap();
    writer.append(b"two").unwrap();
    world.fail_next_sync();
    assert!(writer.syncer().sync_all().is_err());
    drop(writer);
    world.end(Ending::Kill);

    let mut writer = open(&world);
    assert_eq!((writer.last(), writer.state().synced), (LogIndex(2), LogIndex(2)));
    writer.append(b"three").unwrap();
    writer.syncer().sync_all().unwrap();
    drop(writer);
    world.end(Ending::Power);
    assert_eq!(open(&world).last(), LogIndex(3), "all that was told as synced is there");
}
