//! A whole daemon over real QUIC and TLS, with a metadata server that knows only what targets ask.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod serve {
    pub(crate) mod world;
}

use std::{fs, path::Path, time::Duration};

use bytes::Bytes;
use millrace_protocol::{
    capability::{Content, Rights, SYSTEM_SESSION},
    session::Role,
    storage::{CopyRange, Read, Sync, Write, Zero},
    target::{
        ContentName, DigestPart, Hydrate, Item, MarkExported, MarkExportedAt, Presence, Release,
        StoreInline, Trim, UploadPart, UploadSource,
    },
};
use millrace_types::{
    BLOCK_SIZE, ChunkIndex, Crc32c, ErrorKind, GroupEpoch, InodeId, LinkId, SessionId, WriteEpoch,
    WriteNumber,
};
use serve::world::{SESSION, World};

const MIB: usize = 1 << 20;

/// How long a daemon may take for what it does by itself.
const PATIENCE: Duration = Duration::from_secs(60);

fn bytes(seed: u8, len: usize) -> Bytes {
    (0..len).map(|at| (at % 251).to_le_bytes()[0] ^ seed).collect()
}

#[tokio::test]
async fn what_a_client_writes_is_read_back_and_survives_a_restart() {
    let mut world = World::start().await;
    let content = world.content(1);
    let data = bytes(3, MIB);
    for chunk in 0..3 {
        world.write(&content, chunk, 0, data.clone(), u64::from(chunk) + 1).await.unwrap();
    }
    let client = world.client(SESSION).await;
    let sync = Sync { target: world.target };
    assert_eq!(client.call(&sync, World::control()).await.unwrap().loss_count, 0);
    world.restart().await;
    for chunk in 0..3 {
        let (reply, found) = world.read(&content, chunk, 1000, 70_000).await.unwrap();
        assert_eq!(found, data.slice(1000..71_000));
        assert_eq!(reply.checksum, Crc32c::of(&found));
    }
    world.stop().await;
}

#[tokio::test]
async fn a_daemon_begins_without_a_disk_that_is_gone_and_registers_it_when_it_is_back() {
    let second = |dir: &Path| {
        fs::create_dir(dir.join("disk")).unwrap();
        format!("[[target]]\ndirectory = {:?}\n", dir.join("disk/target"))
    };
    let mut world = World::start_with(second).await;
    let both = world.metadata.wait_for_targets(2).await;
    world.restart_after(|dir| fs::rename(dir.join("disk"), dir.join("away")).unwrap()).await;
    let first = world.metadata.wait_for_targets(1).await;
    assert!(both.contains(&first[0]));
    fs::rename(world.dir().join("away"), world.dir().join("disk")).unwrap();
    let registered = tokio::time::timeout(PATIENCE, world.metadata.wait_for_targets(2)).await;
    assert_eq!(registered.expect("it is tried again within seconds"), both);
    world.stop().await;
}

#[tokio::test]
async fn a_repeated_write_is_answered_and_not_applied() {
    let world = World::start().await;
    let content = world.content(1);
    let first = world.write(&content, 0, 0, bytes(1, 5000), 7).await.unwrap();
    world.write(&content, 0, 0, bytes(2, 5000), 8).await.unwrap();
    let again = world.write(&content, 0, 0, bytes(1, 5000), 7).await.unwrap();
    assert_eq!(again.version, first.version);
    let (_, found) = world.read(&content, 0, 0, 5000).await.unwrap();
    assert_eq!(found, bytes(2, 5000));
    world.stop().await;
}

#[tokio::test]
async fn capabilities_tickets_epochs_and_roles_are_checked() {
    let world = World::start().await;
    let content = world.content(1);
    world.write(&content, 0, 0, bytes(1, 5000), 1).await.unwrap();
    let client = world.client(SESSION).await;
    let read = |place| Read { place, sequential: false };
    let kind = async |request: Read| {
        let answer = client.exchange(&request, Bytes::new(), World::bulk()).await;
        answer.map(drop).map_err(|failure| failure.kind)
    };
    let place = world.place(&content, 0, (0, 100), (SESSION, Rights::Read));
    assert_eq!(kind(read(place.clone())).await, Ok(()));

    let mut forged = place.clone();
    forged.capability.body[10] ^= 1;
    assert_eq!(kind(read(forged)).await, Err(ErrorKind::Forbidden));
    let others = world.place(&content, 0, (0, 100), (SessionId(99), Rights::Read));
    assert_eq!(kind(read(others)).await, Err(ErrorKind::Forbidden));
    let system = world.place(&content, 0, (0, 100), (SYSTEM_SESSION, Rights::Read));
    assert_eq!(kind(read(system)).await, Err(ErrorKind::Forbidden));
    let mut old = place.clone();
    old.group_epoch = GroupEpoch(0);
    assert_eq!(kind(read(old)).await, Err(ErrorKind::StaleGroup));
    let mut long = place.clone();
    (long.offset, long.len) = (8 << 20, 1);
    assert_eq!(kind(read(long)).await, Err(ErrorKind::InvalidArgument));
    let hole = world.place(&content, 5, (0, 100), (SESSION, Rights::Read));
    assert_eq!(kind(read(hole)).await, Err(ErrorKind::Lost));

    let body = bytes(9, 100);
    let write = Write {
        place: place.clone(),
        checksum: Crc32c::of(&body),
        number: WriteNumber(50),
        lowest_pending: WriteNumber(50),
        durable: false,
    };
    let refused = client.exchange(&write, body, World::bulk()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden, "the capability is for reading");

    let trim = Trim {
        targets: vec![world.target],
        inode: content.inode,
        generation: content.generation,
        layout: content.layout,
        write_epoch: WriteEpoch(1),
        size: 0,
    };
    let refused = client.call(&trim, World::control()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden, "clients do not trim");

    let stranger = world.peer(Role::Client, None);
    let refused = stranger.exchange(&read(place), Bytes::new(), World::bulk()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::TicketExpired, "no ticket was shown");
    world.stop().await;
}

#[tokio::test]
async fn a_range_is_copied_without_its_bytes_and_targets_only_read_for_each_other() {
    let world = World::start().await;
    let (source, target) = (world.content(1), world.content(2));
    let (data, len) = (bytes(3, MIB), 300_000);
    world.write(&source, 0, 0, data.clone(), 1).await.unwrap();
    let copy = CopyRange {
        place: world.place(&target, 1, (4096, len), (SESSION, Rights::ReadWrite)),
        source: world.place(&source, 0, (17, len), (SESSION, Rights::Read)),
        number: WriteNumber(2),
        lowest_pending: WriteNumber(1),
        durable: true,
    };
    let client = world.client(SESSION).await;
    client.call(&copy, World::bulk()).await.unwrap();
    let (_, found) = world.read(&target, 1, 4096, len).await.unwrap();
    assert_eq!(found, data.slice(17..17 + len));

    let neighbour = world.peer(Role::Target, None);
    let read = Read { place: copy.source.clone(), sequential: false };
    let (reply, body) = neighbour.exchange(&read, Bytes::new(), World::bulk()).await.unwrap();
    let body = body.into_contiguous();
    assert_eq!((reply.checksum, &body), (Crc32c::of(&body), &found));
    let refused = neighbour.call(&copy, World::bulk()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden, "targets do not write for each other");
    let write = Write {
        place: copy.place,
        checksum: reply.checksum,
        number: WriteNumber(3),
        lowest_pending: WriteNumber(1),
        durable: false,
    };
    let refused = neighbour.exchange(&write, body, World::bulk()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden);
    world.stop().await;
}

#[tokio::test]
async fn a_damaged_body_is_refused() {
    let world = World::start().await;
    let content = world.content(1);
    let place = world.place(&content, 0, (0, 4096), (SESSION, Rights::ReadWrite));
    let write = Write {
        place,
        checksum: Crc32c(1),
        number: WriteNumber(1),
        lowest_pending: WriteNumber(1),
        durable: true,
    };
    let client = world.client(SESSION).await;
    let refused = client.exchange(&write, bytes(1, 4096), World::bulk()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Corrupt);
    world.stop().await;
}

#[tokio::test]
async fn bytes_of_an_inode_are_stored_once_and_never_over_what_was_written_since() {
    let mut world = World::start().await;
    let mut content = world.content(1);
    let whole = bytes(5, 5000);
    let inline = StoreInline {
        target: world.target,
        group_epoch: GroupEpoch(3),
        content: content.clone(),
        bytes: whole.to_vec(),
    };
    let client = world.client(SESSION).await;
    let refused = client.call(&inline, World::control()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden, "clients have no part in it");
    let metadata = world.peer(Role::Metadata, None);
    assert_eq!(metadata.call(&inline, World::control()).await.unwrap().stored.0, 5000);
    world.restart().await;
    let (_, found) = world.read(&content, 0, 0, 5000).await.unwrap();
    assert_eq!(found, whole, "durable, without a sync");

    let stale = world.write(&content, 0, 0, bytes(2, 100), 1).await.unwrap_err();
    assert_eq!(stale.kind, ErrorKind::StaleEpoch, "it is the epoch of the inode's bytes");
    content.write_epoch = content.write_epoch.next();
    world.write(&content, 0, 0, bytes(9, 3000), 2).await.unwrap();
    world.write(&content, 0, 4000, bytes(9, 3000), 3).await.unwrap();
    // A request that was on its way for long.
    let metadata = world.peer(Role::Metadata, None);
    assert_eq!(metadata.call(&inline, World::control()).await.unwrap().stored.0, 5000);
    let (_, found) = world.read(&content, 0, 0, 7000).await.unwrap();
    assert_eq!(found[..3000], bytes(9, 3000));
    assert_eq!(found[3000..4000], whole[3000..4000]);
    assert_eq!(found[4000..], bytes(9, 3000));

    for bytes in [Vec::new(), vec![1; 65 * 1024]] {
        let request = StoreInline { bytes, ..inline.clone() };
        let refused = metadata.call(&request, World::control()).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    }
    let elsewhere = StoreInline { group_epoch: GroupEpoch(9), ..inline };
    assert!(metadata.call(&elsewhere, World::control()).await.is_err(), "an unknown epoch");
    world.stop().await;
}

#[tokio::test]
async fn a_trim_zeroes_cuts_and_refuses_older_writers() {
    let world = World::start().await;
    let mut content = world.content(1);
    world.write(&content, 0, 0, bytes(1, MIB), 1).await.unwrap();
    world.write(&content, 1, 0, bytes(1, MIB), 2).await.unwrap();
    let metadata = world.peer(Role::Metadata, None);
    let trim = Trim {
        targets: vec![world.target],
        inode: content.inode,
        generation: content.generation,
        layout: content.layout,
        write_epoch: WriteEpoch(1),
        size: 100_000,
    };
    let reply = metadata.call(&trim, World::control()).await.unwrap();
    assert!(reply.freed.0 > MIB as u64);
    let stale = world.write(&content, 0, 0, bytes(2, 100), 3).await.unwrap_err();
    assert_eq!(stale.kind, ErrorKind::StaleEpoch);
    (content.write_epoch, content.sparse) = (WriteEpoch(1), true);
    let (_, found) = world.read(&content, 0, 0, 200_000).await.unwrap();
    assert_eq!(found[..100_000], bytes(1, 100_000));
    assert!(found[100_000..].iter().all(|&byte| byte == 0));
    let place = world.place(&content, 0, (10_000, 70_000), (SESSION, Rights::ReadWrite));
    let (number, lowest_pending) = (WriteNumber(9), WriteNumber(9));
    let client = world.client(SESSION).await;
    client.call(&Zero { place, number, lowest_pending }, World::control()).await.unwrap();
    let (_, found) = world.read(&content, 0, 0, 100_000).await.unwrap();
    assert!(found[10_000..80_000].iter().all(|&byte| byte == 0));
    assert_eq!(found[80_000..], bytes(1, 100_000)[80_000..]);
    world.stop().await;
}

#[tokio::test]
async fn imported_files_are_fetched_released_and_fetched_again() {
    let world = World::start().await;
    let data = bytes(5, 9 * MIB + 17);
    fs::write(world.bucket.path().join("object"), &data).unwrap();
    let content = world.imported(2, "object").await;
    let (reply, found) = world.read(&content, 0, 12_345, MIB).await.unwrap();
    assert_eq!(found, data.slice(12_345..12_345 + MIB));
    assert_eq!(reply.fetched, u32::try_from(MIB).unwrap());

    let metadata = world.peer(Role::Metadata, None);
    let item = Item { content: content.clone(), first: ChunkIndex(0), count: u32::MAX };
    let hydrate = Hydrate { target: world.target, items: vec![item.clone()] };
    let hydrated = metadata.call(&hydrate, World::bulk()).await.unwrap();
    assert!(hydrated.results[0].is_ok());
    let name = ContentName { inode: content.inode, generation: content.generation };
    let presence = Presence { target: world.target, contents: vec![name] };
    let present = metadata.call(&presence, World::control()).await.unwrap().present[0];
    assert_eq!((present.clean.0, present.end), (data.len() as u64, data.len() as u64));

    let release = Release { target: world.target, items: vec![item] };
    let released = metadata.call(&release, World::control()).await.unwrap();
    assert!(released.results[0].as_ref().unwrap().0 >= data.len() as u64);
    let present = metadata.call(&presence, World::control()).await.unwrap().present[0];
    assert_eq!(present.clean.0, 0);
    let refused = world.read(&content, 1, 0, MIB + 17).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument, "more than one transfer");
    let (_, found) = world.read(&content, 1, 17, MIB).await.unwrap();
    assert_eq!(found, data.slice(8 * MIB + 17..9 * MIB + 17));
    world.stop().await;
}

#[tokio::test]
async fn parts_are_uploaded_and_what_was_exported_becomes_clean() {
    let world = World::start().await;
    let content = world.content(3);
    let data = bytes(7, 3 * MIB);
    for at in 0..3 {
        let part = data.slice(at * MIB..(at + 1) * MIB);
        world.write(&content, 0, at * MIB, part, at as u64 + 1).await.unwrap();
    }
    let bucket = world.open_bucket();
    let none = millrace_object_source::Metadata::default();
    let upload = bucket.create_upload("out/file", &none).await.unwrap();
    let metadata = world.peer(Role::Metadata, None);
    let place = world.place(&content, 0, (0, 1), (SYSTEM_SESSION, Rights::Read));
    let request = UploadPart {
        source: UploadSource {
            content: content.clone(),
            capability: place.capability,
            offset: 0,
            len: data.len() as u64,
            link: LinkId(1),
            key: "out/file".to_owned(),
        },
        upload_id: upload.as_str().to_owned(),
        part_number: 1,
    };
    let reply = metadata.call(&request, World::bulk()).await.unwrap();
    assert_eq!(reply.checksum, Crc32c::of(&data));
    let part = millrace_object_source::UploadedPart {
        number: 1,
        tag: millrace_object_source::Tag::new(reply.etag).unwrap(),
        len: data.len() as u64,
    };
    let absent = millrace_object_source::Condition::Absent;
    bucket.complete_upload("out/file", &upload, &[part], &absent).await.unwrap();
    assert_eq!(fs::read(world.bucket.path().join("out/file")).unwrap(), data);

    world.write(&content, 0, 0, bytes(8, 10), 20).await.unwrap();
    let item = Item { content: content.clone(), first: ChunkIndex(0), count: 1 };
    let mark = MarkExported { target: world.target, items: vec![item] };
    let marked = metadata.call(&mark, World::control()).await.unwrap();
    let expected = data.len() as u64 - BLOCK_SIZE;
    assert_eq!(marked.results[0].as_ref().unwrap().0, expected, "one block changed meanwhile");
    // Who knows that the object has all of it learns that the target does not.
    let mut item = mark.items[0].clone();
    item.content.origin_length = data.len() as u64;
    let mark = MarkExported { target: world.target, items: vec![item] };
    let marked = metadata.call(&mark, World::control()).await.unwrap();
    assert_eq!(marked.results[0].as_ref().unwrap_err().kind, ErrorKind::ObjectChanged);
    world.stop().await;
}

#[tokio::test]
async fn what_is_read_of_a_part_that_is_there_counts_as_if_it_was_sent() {
    let mut world = World::start().await;
    let content = world.content(3);
    let data = bytes(7, MIB + 10);
    world.write(&content, 0, 0, data.slice(..MIB), 1).await.unwrap();
    world.write(&content, 0, MIB, data.slice(MIB..), 2).await.unwrap();
    let item = Item { content: content.clone(), first: ChunkIndex(0), count: 1 };
    let mark = MarkExported { target: world.target, items: vec![item] };
    exported(&world, &content, MIB + 10, "out/file").await;
    let client = world.client(SESSION).await;
    client.call(&Sync { target: world.target }, World::control()).await.unwrap();
    // It forgets what it sent.
    world.restart().await;
    let metadata = world.peer(Role::Metadata, None);
    let marked = metadata.call(&mark, World::control()).await.unwrap();
    assert_eq!(marked.results[0].as_ref().unwrap().0, 0);
    let place = world.place(&content, 0, (0, 1), (SYSTEM_SESSION, Rights::Read));
    let source = UploadSource {
        content: content.clone(),
        capability: place.capability,
        offset: 0,
        len: data.len() as u64,
        link: LinkId(1),
        key: "out/file".to_owned(),
    };
    let mut md5 = millrace_object_source::Md5Sum::default();
    md5.update(&data);
    for (with_md5, md5) in [(false, None), (true, Some(md5.finish()))] {
        let request = DigestPart { source: source.clone(), with_md5 };
        let told = metadata.call(&request, World::bulk()).await.unwrap();
        assert_eq!((told.checksum, told.md5), (Crc32c::of(&data), md5));
    }
    let source = UploadSource { len: 1 << 40, ..source };
    let request = DigestPart { source, with_md5: false };
    let refused = metadata.call(&request, World::bulk()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{refused}");
    let marked = metadata.call(&mark, World::control()).await.unwrap();
    let pages = (data.len() as u64).next_multiple_of(4096);
    assert_eq!(marked.results[0].as_ref().unwrap().0, pages);
    world.stop().await;
}

/// Has a target send a chunk to an object of its own, as an export of it.
async fn exported(world: &World, content: &Content, len: usize, key: &str) {
    let bucket = world.open_bucket();
    let none = millrace_object_source::Metadata::default();
    let upload = bucket.create_upload(key, &none).await.unwrap();
    let place = world.place(content, 0, (0, 1), (SYSTEM_SESSION, Rights::Read));
    let request = UploadPart {
        source: UploadSource {
            content: content.clone(),
            capability: place.capability,
            offset: 0,
            len: len as u64,
            link: LinkId(1),
            key: key.to_owned(),
        },
        upload_id: upload.as_str().to_owned(),
        part_number: 1,
    };
    let metadata = world.peer(Role::Metadata, None);
    let reply = metadata.call(&request, World::bulk()).await.unwrap();
    let tag = millrace_object_source::Tag::new(reply.etag).unwrap();
    let part = millrace_object_source::UploadedPart { number: 1, tag, len: len as u64 };
    let absent = millrace_object_source::Condition::Absent;
    bucket.complete_upload(key, &upload, &[part], &absent).await.unwrap();
}

#[tokio::test]
async fn who_knows_a_file_from_before_its_export_gets_nothing_of_its_old_object() {
    let mut world = World::start().await;
    fs::write(world.bucket.path().join("old"), bytes(1, MIB)).unwrap();
    let before = world.imported(5, "old").await;
    let data = bytes(2, MIB);
    world.write(&before, 0, 0, data.clone(), 1).await.unwrap();
    exported(&world, &before, MIB, "new").await;
    let after = Content { write_epoch: WriteEpoch(1), ..world.imported(5, "new").await };
    let item =
        |content: &Content| Item { content: content.clone(), first: ChunkIndex(0), count: 1 };
    let metadata = world.peer(Role::Metadata, None);
    let mark = MarkExportedAt { target: world.target, items: vec![item(&after)] };
    let marked = metadata.call(&mark, World::control()).await.unwrap();
    assert_eq!(marked.results[0].as_ref().unwrap().0, MIB as u64);
    let (_, found) = world.read(&before, 0, 0, MIB).await.unwrap();
    assert_eq!(found, data, "what is here is the same for everybody");

    // As a reader from before may know the file: with its old object, or as one with holes.
    let holes = Content { origin: None, origin_length: 0, sparse: true, ..before.clone() };
    for is_restarted in [false, true] {
        let metadata = world.peer(Role::Metadata, None);
        let release = Release { target: world.target, items: vec![item(&after)] };
        let released = metadata.call(&release, World::control()).await.unwrap();
        assert_eq!(released.results[0].as_ref().unwrap().0, MIB as u64);
        if is_restarted {
            world.restart().await;
        }
        for old in [&before, &holes] {
            let refused = world.read(old, 0, 0, 100).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::StaleEpoch, "{refused}");
        }
        let metadata = world.peer(Role::Metadata, None);
        let hydrate = Hydrate { target: world.target, items: vec![item(&before)] };
        let hydrated = metadata.call(&hydrate, World::bulk()).await.unwrap();
        assert_eq!(hydrated.results[0].as_ref().unwrap_err().kind, ErrorKind::StaleEpoch);
        let hydrate = Hydrate { target: world.target, items: vec![item(&after)] };
        let hydrated = metadata.call(&hydrate, World::bulk()).await.unwrap();
        assert_eq!(hydrated.results[0].as_ref().unwrap().0, MIB as u64);
        let (_, found) = world.read(&after, 0, 0, MIB).await.unwrap();
        assert_eq!(found, data, "restarted: {is_restarted}");
    }
    world.stop().await;
}

#[tokio::test]
async fn an_older_server_has_no_epoch_kept_with_an_export_and_files_cut_that_were_exported() {
    let world = World::start().await;
    let content = world.content(6);
    world.write(&content, 0, 0, bytes(1, MIB), 1).await.unwrap();
    exported(&world, &content, MIB, "object").await;
    let metadata = world.peer(Role::Metadata, None);
    // A cut to that epoch is still to be told of.
    let cut = Content { write_epoch: WriteEpoch(1), ..world.imported(6, "object").await };
    let item = Item { content: cut.clone(), first: ChunkIndex(0), count: 1 };
    let mark = MarkExported { target: world.target, items: vec![item] };
    let marked = metadata.call(&mark, World::control()).await.unwrap();
    assert_eq!(marked.results[0].as_ref().unwrap().0, MIB as u64);
    let trim = Trim {
        targets: vec![world.target],
        inode: cut.inode,
        generation: cut.generation,
        layout: cut.layout,
        write_epoch: cut.write_epoch,
        size: 100_000,
    };
    assert!(metadata.call(&trim, World::control()).await.unwrap().freed.0 > 0);
    world.stop().await;
}

#[tokio::test]
async fn a_part_larger_than_any_chunk_is_put_together_while_it_is_sent() {
    let world = World::start().await;
    let data = bytes(9, 75 * MIB + 17);
    fs::write(world.bucket.path().join("object"), &data).unwrap();
    let content = world.imported(2, "object").await;
    let bucket = world.open_bucket();
    let none = millrace_object_source::Metadata::default();
    let upload = bucket.create_upload("out/file", &none).await.unwrap();
    let metadata = world.peer(Role::Metadata, None);
    let place = world.place(&content, 0, (0, 1), (SYSTEM_SESSION, Rights::Read));
    let part = |offset: usize, len: usize, part_number| UploadPart {
        source: UploadSource {
            content: content.clone(),
            capability: place.capability.clone(),
            offset: offset as u64,
            len: len as u64,
            link: LinkId(1),
            key: "out/file".to_owned(),
        },
        upload_id: upload.as_str().to_owned(),
        part_number,
    };
    let large = 72 * MIB;
    let mut parts = Vec::new();
    for (number, (offset, len)) in (1..).zip([(0, large), (large, data.len() - large)]) {
        let reply = metadata.call(&part(offset, len, number), World::bulk()).await.unwrap();
        assert_eq!(reply.checksum, Crc32c::of(&data.slice(offset..offset + len)));
        let tag = millrace_object_source::Tag::new(reply.etag).unwrap();
        parts.push(millrace_object_source::UploadedPart { number, tag, len: len as u64 });
    }
    let absent = millrace_object_source::Condition::Absent;
    bucket.complete_upload("out/file", &upload, &parts, &absent).await.unwrap();
    assert!(fs::read(world.bucket.path().join("out/file")).unwrap() == data);
    // Of an upload that is over no part is taken.
    let over = metadata.call(&part(0, large, 1), World::bulk()).await.unwrap_err();
    assert_eq!(over.kind, ErrorKind::Stale, "{over}");
    world.stop().await;
}

#[tokio::test]
async fn deleted_files_are_reclaimed_from_the_queue() {
    let world = World::start().await;
    let content = world.content(4);
    world.write(&content, 0, 0, bytes(1, MIB), 1).await.unwrap();
    world.metadata.reclaim(InodeId(4), content.generation);
    world.metadata.wait_until_reclaimed().await;
    // Given up, and not lost: nobody is to be alarmed by a late reader.
    let stale = world.read(&content, 0, 0, 100).await.unwrap_err();
    assert_eq!(stale.kind, ErrorKind::StaleContent);
    let stale = world.write(&content, 0, 0, bytes(1, 100), 2).await.unwrap_err();
    assert_eq!(stale.kind, ErrorKind::StaleContent);
    world.stop().await;
}

#[tokio::test]
async fn a_newer_connection_of_a_session_ends_the_older_one() {
    let world = World::start().await;
    let old = world.attached(SESSION, 5).await.unwrap();
    let _new = world.attached(SESSION, 6).await.unwrap();
    let sync = Sync { target: world.target };
    // The old connection is cut; connecting again under the old number is refused.
    let refused = old.call(&sync, World::control()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused}");
    world.stop().await;
}
