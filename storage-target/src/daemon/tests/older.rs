//! A target that the metadata server takes for an older copy of itself, and what it goes by.

use millrace_object_source::Settings;
use millrace_protocol::{
    capability::Rights, cluster::LogPoint, storage::Read, upkeep::DescribeTarget,
};
use millrace_types::{ErrorKind, Failure, LogIndex};

use super::{MIB, TARGET, World, open, options, place, write};
use crate::{disk::BufferPool, format::batch::BootId, links::Links, volume::Options};

#[tokio::test]
async fn what_a_target_shows_of_the_log_survives_a_loss_of_power() {
    let World { daemon, disk } = World::new().await;
    let point = LogPoint { incarnation: 5, index: LogIndex(9) };
    daemon.note_log(TARGET, point).await.unwrap();
    assert_eq!(daemon.log_witness(TARGET).await.unwrap().seen, Some(point));
    drop(daemon);
    disk.disk.restart();
    let options = Options { boot: BootId([2; 16]), ..options(TARGET, &disk, BufferPool::new(0)) };
    let store = open(&options, &Links::new(Settings::default())).await;
    assert_eq!(store.log_seen().await.unwrap(), Some(point));
}

#[tokio::test]
async fn an_older_copy_of_a_target_serves_nobody_until_it_is_taken_for_what_it_was() {
    let world = World::new().await;
    world.write(1, 1).await;
    let (daemon, client) = (&world.daemon, world.client(1).await);
    let read = Read { place: place(1, Rights::Read), sequential: false };
    daemon.handle_compared(TARGET, Some(&Failure::from(ErrorKind::Unavailable)));
    assert!(daemon.read(&client, &read).await.is_ok(), "that says nothing of the target");

    let older = Failure::new(ErrorKind::Stale, "it is an older copy of itself");
    daemon.handle_compared(TARGET, Some(&older));
    let refused = daemon.read(&client, &read).await.unwrap_err();
    assert_eq!((refused.kind, &refused.message), (ErrorKind::Busy, &older.message));
    let refused = daemon.let_in(&client, &write(1, 2).0).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy);
    let describe = DescribeTarget { target: TARGET, after: None, findings_max: 0 };
    assert_eq!(daemon.describe_target(&describe).unwrap_err(), older, "an operator hears why");
    assert_eq!(daemon.log_witness(TARGET).await.unwrap().seen, None, "it goes on showing that");

    daemon.handle_compared(TARGET, Some(&Failure::from(ErrorKind::Unavailable)));
    assert!(daemon.read(&client, &read).await.is_err(), "it is an older copy still");

    daemon.handle_compared(TARGET, None);
    assert_eq!(world.read(&client, 1).await.concat().len(), MIB as usize);
}
