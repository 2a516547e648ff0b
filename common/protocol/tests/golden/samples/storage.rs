//! Messages of the data path.

use millrace_protocol::storage::{
    Attach, AttachReply, ChunkVersion, CopyRange, LossCount, Place, Read, ReadReply, Seek,
    SeekReply, Sync, SyncReply, Write, WriteReply, Zero,
};
use millrace_types::{ChunkIndex, Crc32c, GroupEpoch, SessionId, WriteNumber};

use super::{Sample, cluster::TARGET, pair, signed};

pub(super) fn all() -> Vec<Sample> {
    let attached = AttachReply {
        session: SessionId(7),
        loss_counts: vec![LossCount { target: TARGET, count: 2 }],
    };
    let written = WriteReply {
        version: ChunkVersion { group_epoch: GroupEpoch(2), counter: 31 },
        loss_count: 2,
    };
    let write = Write {
        place: place(),
        checksum: Crc32c(0xdead_beef),
        number: WriteNumber(12),
        lowest_pending: WriteNumber(10),
        durable: true,
    };
    let copy = CopyRange {
        place: place(),
        source: Place { chunk: ChunkIndex(6), offset: 4096, ..place() },
        number: WriteNumber(14),
        lowest_pending: WriteNumber(10),
        durable: true,
    };
    let zero = Zero { place: place(), number: WriteNumber(13), lowest_pending: WriteNumber(10) };
    [
        pair(&Attach { ticket: signed(), connection_number: 3 }, &attached),
        pair(
            &Read { place: place(), sequential: true },
            &ReadReply { checksum: Crc32c(1), fetched: 4096 },
        ),
        pair(&write, &written),
        pair(&zero, &written),
        pair(&Sync { target: TARGET }, &SyncReply { loss_count: 2 }),
        pair(&Seek { place: place(), hole: true }, &SeekReply { offset: Some(4096) }),
        pair(&copy, &written),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn place() -> Place {
    Place {
        target: TARGET,
        group_epoch: GroupEpoch(2),
        capability: signed(),
        chunk: ChunkIndex(5),
        offset: 65_536,
        len: 1 << 20,
    }
}
