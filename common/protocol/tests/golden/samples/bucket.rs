//! Messages about who reaches buckets, and what changed on both sides.

use millrace_protocol::{
    bucket::{CheckLink, CheckLinkReply, Conflict, ConflictsReply, HostCheck, ListConflicts},
    cluster::{Bucket, LinkMode},
};
use millrace_types::{ByteLen, ErrorKind, Failure, InodeId, Timestamp};

use super::{Sample, pair};

pub(super) fn all() -> Vec<Sample> {
    let bucket = Bucket {
        url: "s3://b/train".into(),
        endpoint: Some("http://127.0.0.1:8333".into()),
        region: None,
        credentials: Some("train".into()),
    };
    let denied = Failure::new(ErrorKind::BucketDenied, "the bucket refuses access");
    let hosts = vec![
        HostCheck { host: "the metadata server".into(), took_ms: 12, result: Ok(()) },
        HostCheck { host: "target host a".into(), took_ms: 900, result: Err(denied) },
    ];
    let conflict = Conflict {
        inode: InodeId(7),
        path: b"/run/model.pt".to_vec(),
        size: ByteLen(1 << 20),
        modified: Timestamp(1_700_000_000_000_000_000),
        key: Some("run/model.pt".into()),
    };
    [
        pair(
            &CheckLink { path: b"/train".to_vec() },
            &CheckLinkReply { bucket, mode: LinkMode::ImportExport, hosts },
        ),
        pair(
            &ListConflicts { after: Some(InodeId(6)) },
            &ConflictsReply { conflicts: vec![conflict], more: true },
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}
