//! Messages that keep the cluster together, and those by which targets work.

use millrace_protocol::{
    cluster::{
        AcknowledgeReclaim, Bucket, CompareLog, FetchKeys, FetchLinks, FetchMap, FetchReclaim,
        Group, Heartbeat, HeartbeatReply, Host, Keys, Link, LinkMode, Links, LogPoint, LogWitness,
        Map, Pool, ReclaimBatch, ReclaimEntry, RegisterHost, RegisterHostReply, ReportChanged,
        SigningKey, Target, TargetReport,
    },
    target::{
        CheckBucket, ContentName, DigestPart, DigestPartReply, Hydrate, Item, ItemResults,
        MarkExported, MarkExportedAt, Presence, PresenceReply, Present, Release, StoreInline,
        StoreInlineReply, StoreObject, StoreObjectReply, Tried, Trim, TrimReply, TryBucket,
        UploadCondition, UploadObject, UploadObjectReply, UploadObjectTo, UploadPart,
        UploadPartReply, UploadPartTo, UploadSource,
    },
};
use millrace_types::{
    ByteLen, ChunkIndex, ContentGeneration, Crc32c, ErrorKind, Failure, GroupEpoch, HostId,
    InodeId, KeyId, LinkId, LogIndex, MapEpoch, PoolId, TargetId, Timestamp, WriteEpoch,
};

use super::{Sample, content, done, layout, pair, signed};

pub(super) fn all() -> Vec<Sample> {
    [membership(), work(), uploads()].into_iter().flatten().collect()
}

pub(super) const TARGET: TargetId = TargetId([1, 2, 3, 4, 5, 6, 7, 8]);
pub(super) const HOST: HostId = HostId([9; 16]);

fn membership() -> Vec<Sample> {
    let report = TargetReport {
        id: TARGET,
        capacity: ByteLen(1 << 40),
        used: ByteLen(1 << 30),
        inode_max: InodeId(77),
        loss_count: 2,
        bad_blocks: 1,
        blank: true,
    };
    let news = HeartbeatReply {
        server_time: Timestamp(1_700_000_000_000_000_000),
        lease_ms: 30_000,
        incarnation: 5,
        map_epoch: MapEpoch(3),
        newest_key: KeyId(2),
        links_version: 4,
        reclaim_waiting: true,
    };
    let register = RegisterHost {
        addresses: vec!["10.0.0.1:7000".into()],
        host_name: "store-1".into(),
        targets: vec![report.clone()],
    };
    let map = Map {
        epoch: MapEpoch(3),
        hosts: vec![Host {
            id: HOST,
            name: "store-1".into(),
            addresses: vec!["10.0.0.1:7000".into()],
        }],
        targets: vec![Target { id: TARGET, host: HOST }],
        pools: vec![Pool {
            id: PoolId(1),
            name: "default".into(),
            groups: vec![Group { epoch: GroupEpoch(2), targets: vec![TARGET] }],
        }],
    };
    let keys = Keys { keys: vec![SigningKey { id: KeyId(2), secret: [0xee; 32] }] };
    let link = Link { id: LinkId(3), bucket: bucket(), mode: LinkMode::ImportExport };
    let entry = ReclaimEntry { position: 6, inode: InodeId(9), generation: ContentGeneration(5) };
    let changed = ContentName { inode: InodeId(9), generation: ContentGeneration(5) };
    let point = LogPoint { incarnation: 5, index: LogIndex(99) };
    let beat = Heartbeat { targets: vec![report], hydrated_bytes: 1 << 33 };
    [
        pair(&register, &RegisterHostReply { news: news.clone() }),
        pair(&beat, &news),
        pair(&FetchMap { held: MapEpoch(2) }, &map),
        pair(&FetchKeys {}, &keys),
        pair(&FetchLinks {}, &Links { version: 4, links: vec![link] }),
        pair(
            &FetchReclaim { target: TARGET, entries_max: 100 },
            &ReclaimBatch { entries: vec![entry] },
        ),
        pair(&AcknowledgeReclaim { target: TARGET, through: 6 }, &done()),
        pair(&ReportChanged { contents: vec![changed] }, &done()),
        pair(
            &CompareLog { targets: vec![LogWitness { target: TARGET, seen: Some(point) }] },
            &point,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn work() -> Vec<Sample> {
    let trim = Trim {
        targets: vec![TARGET],
        inode: InodeId(9),
        generation: ContentGeneration(5),
        layout: layout(),
        write_epoch: WriteEpoch(6),
        size: 4097,
    };
    let inline = StoreInline {
        target: TARGET,
        group_epoch: GroupEpoch(3),
        content: content(),
        bytes: b"small".to_vec(),
    };
    let items = || vec![Item { content: content(), first: ChunkIndex(1), count: 3 }];
    let failure = Failure::new(ErrorKind::BucketDenied, "why");
    let results = ItemResults { results: vec![Ok(ByteLen(65536)), Err(failure)] };
    let name = ContentName { inode: InodeId(9), generation: ContentGeneration(5) };
    let present = Present { clean: ByteLen(1), written: ByteLen(2), zero: ByteLen(3), end: 4 };
    [
        pair(&trim, &TrimReply { freed: ByteLen(4096) }),
        pair(&inline, &StoreInlineReply { stored: ByteLen(5) }),
        pair(&Hydrate { target: TARGET, items: items() }, &results),
        pair(&Release { target: TARGET, items: items() }, &results),
        pair(&MarkExported { target: TARGET, items: items() }, &results),
        pair(&MarkExportedAt { target: TARGET, items: items() }, &results),
        pair(
            &Presence { target: TARGET, contents: vec![name] },
            &PresenceReply { present: vec![present] },
        ),
        pair(&CheckBucket { bucket: bucket(), write: true }, &done()),
        pair(
            &TryBucket { bucket: bucket(), read: true, write: false },
            &Tried {
                deletes: false,
                untried: vec!["reading was not tried: nothing there to read".into()],
            },
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn uploads() -> Vec<Sample> {
    let source = || UploadSource {
        content: content(),
        capability: signed(),
        offset: 8 << 20,
        len: 8 << 20,
        link: LinkId(3),
        key: "out/model.pt".into(),
    };
    let part = UploadPart { source: source(), upload_id: "u-1".into(), part_number: 2 };
    let object = UploadObject {
        source: source(),
        metadata: vec![("file-owner".into(), "1000".into())],
        condition: UploadCondition::Tag("\"a\"".into()),
    };
    let checksum = Crc32c(0x1234_5678);
    let part_to = UploadPartTo { bucket: bucket(), part: part.clone() };
    let object_to = UploadObjectTo { bucket: bucket(), object: object.clone() };
    let store = StoreObject { bucket: None, object: object.clone() };
    let stored = StoreObjectReply { etag: "\"f\"".into(), is_checked: true };
    let digest = DigestPart { source: source(), with_md5: true };
    let digests = DigestPartReply { checksum, md5: Some([7; 16]) };
    [
        pair(&part, &UploadPartReply { etag: "\"b\"".into(), checksum }),
        pair(&object, &UploadObjectReply { etag: "\"c\"".into(), checksum }),
        pair(&part_to, &UploadPartReply { etag: "\"d\"".into(), checksum }),
        pair(&object_to, &UploadObjectReply { etag: "\"e\"".into(), checksum }),
        pair(&store, &stored),
        pair(&digest, &digests),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn bucket() -> Bucket {
    Bucket {
        url: "s3://data/train".into(),
        endpoint: Some("http://127.0.0.1:8333".into()),
        region: Some("eu-west-1".into()),
        credentials: Some("research".into()),
    }
}
