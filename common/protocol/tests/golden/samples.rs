//! One value of every request and every reply, with each field different from its default.

mod access;
mod admin;
mod ahead;
mod backup;
mod bucket;
mod cluster;
mod delegation;
mod fsck;
mod jobs;
mod lease;
mod left_out;
mod lock;
mod metadata;
mod release;
mod requests;
mod selection;
mod storage;
mod upkeep;

use millrace_protocol::{
    Message, Request,
    capability::{Content, Origin, Signed},
    cluster::LogPoint,
    codec,
    control::{DescribeMount, MountDescription},
    same_host::{FindSocket, FoundSocket},
    session::{
        AllTold, Caller, CheckLog, CheckLogReply, CloseSession, Declare, DeclareReply, Done, Held,
        Hello, HelloReply, OpenSession, Operation, RenewTicket, SessionReply,
    },
};
use millrace_types::{
    ChunkSize, ContentGeneration, InodeId, KeyId, Layout, LinkId, LockKind, LogIndex, MapEpoch,
    PoolId, SessionId, Timestamp, WriteEpoch,
};

/// A message as bytes, with the checks that need its type.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) reads_back: fn(&[u8]) -> bool,
    pub(crate) survives: fn(&[u8]),
}

pub(crate) fn all() -> Vec<Sample> {
    let mut samples = sessions();
    samples.extend(metadata::all());
    samples.extend(lock::all());
    samples.extend(lease::all());
    samples.extend(delegation::all());
    samples.extend(access::all());
    samples.extend(bucket::all());
    samples.extend(ahead::all());
    samples.extend(cluster::all());
    samples.extend(storage::all());
    samples.extend(release::all());
    samples.extend(admin::all());
    samples.extend(selection::all());
    samples.extend(requests::all());
    samples.extend(jobs::all());
    samples.extend(left_out::all());
    samples.extend(upkeep::all());
    samples.extend(fsck::all());
    samples.extend(backup::all());
    samples
}

/// The samples of one request and its reply.
fn pair<R: Request>(request: &R, reply: &R::Reply) -> [Sample; 2] {
    let name = R::KIND.name();
    [sample(format!("{name}.request"), request), sample(format!("{name}.reply"), reply)]
}

fn sample<M: Message>(name: String, message: &M) -> Sample {
    let reads_back = |bytes: &[u8]| {
        let message: M = codec::decode(bytes).expect("our own bytes decode");
        codec::encode(&message)[..] == *bytes
    };
    let survives = |bytes: &[u8]| drop(codec::decode::<M>(bytes));
    Sample { name, bytes: codec::encode(message).to_vec(), reads_back, survives }
}

fn sessions() -> Vec<Sample> {
    let session_reply = SessionReply {
        session: SessionId(7),
        ticket: signed(),
        lease_ms: 30_000,
        server_time: Timestamp(1_700_000_000_123_456_789),
        map_epoch: MapEpoch(3),
    };
    let hello_reply = HelloReply {
        incarnation: 0x1122_3344_5566_7788,
        last_index: LogIndex(99),
        server_time: Timestamp(-5),
        map_epoch: MapEpoch(3),
    };
    let mount = MountDescription {
        cluster: "00ff".into(),
        subtree: b"/team".to_vec(),
        mountpoint: b"/mnt/m".to_vec(),
        read_only: true,
        process: 4242,
        version: "0.1.0".into(),
    };
    [
        pair(&Hello { seen_index: LogIndex(98) }, &hello_reply),
        pair(&OpenSession { nonce: 77, host_name: "gpu-1".into() }, &session_reply),
        pair(&RenewTicket { session: SessionId(7) }, &session_reply),
        pair(&CloseSession { session: SessionId(7) }, &done()),
        pair(
            &Declare {
                session: SessionId(7),
                held: vec![Held::Lock(lock::lock(Some(LockKind::Write)))],
                last: true,
            },
            &DeclareReply { lost: vec![1, 5] },
        ),
        pair(
            &CheckLog {
                seen: LogPoint { incarnation: 0x1122_3344_5566_7788, index: LogIndex(98) },
            },
            &CheckLogReply { kept: LogIndex(97) },
        ),
        pair(&AllTold { session: SessionId(7), incarnation: 0x1122_3344_5566_7788 }, &done()),
        pair(
            &FindSocket {},
            &FoundSocket {
                name: b"millrace/77".to_vec(),
                owner: 999,
                ticket: [0x5a; 32],
                streams_max: 64,
            },
        ),
        pair(&DescribeMount {}, &mount),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn done() -> Done {
    Done { index: LogIndex(12) }
}

fn caller() -> Caller {
    Caller { uid: 1000, gid: 100, groups: vec![4, 27] }
}

fn operation() -> Operation {
    Operation { session: SessionId(7), sequence: 41, lowest_pending: 39 }
}

fn signed() -> Signed {
    Signed { key: KeyId(2), body: vec![0xab; 21], mac: [0xcd; 32] }
}

fn layout() -> Layout {
    Layout::new(ChunkSize::DEFAULT, 4, PoolId(1), 128, 0x0102_0304).expect("a sound layout")
}

fn content() -> Content {
    Content {
        inode: InodeId(0x1_0000_0001),
        generation: ContentGeneration(5),
        write_epoch: WriteEpoch(6),
        layout: layout(),
        origin: Some(Origin {
            link: LinkId(3),
            key: "train/cat/0001.jpg".into(),
            size: 123_456,
            tag: "\"d41d8cd98f00b204e9800998ecf8427e\"".into(),
            modified: Timestamp(1_600_000_000_000_000_000),
        }),
        origin_length: 123_000,
        sparse: true,
    }
}
