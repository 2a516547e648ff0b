//! Messages about keys that can be no names, and about links that are listed again by themselves.

use millrace_protocol::{
    left_out::{LeftOutDirectory, LeftOutKey, LeftOutReason, LeftOutReply, ShowLeftOut},
    refresh::{ListRefreshIntervals, RefreshInterval, RefreshIntervalsReply, SetRefreshInterval},
    session::Caller,
};
use millrace_types::{InodeId, LinkId, Timestamp};

use super::{Sample, pair};

pub(super) fn all() -> Vec<Sample> {
    let caller = Caller { uid: 1000, gid: 1000, groups: vec![27] };
    let show = ShowLeftOut { caller, path: b"/train".to_vec(), after: Some(InodeId(0x0102_0304)) };
    let first = vec![LeftOutKey { key: "train/a//b".into(), reason: LeftOutReason::Directory }];
    let directory =
        LeftOutDirectory { inode: InodeId(77), path: b"/train/a".to_vec(), keys: 1 << 33, first };
    let left_out = LeftOutReply { directories: vec![directory], next: Some(InodeId(78)) };
    let interval = RefreshInterval {
        link: LinkId(3),
        every_seconds: 600,
        running: true,
        ended: Some(Timestamp(1_700_000_000_000_000_000)),
        directories: 1 << 34,
        failed: 2,
        failure: Some("the bucket cannot be reached".into()),
    };
    [
        pair(&show, &left_out),
        pair(
            &SetRefreshInterval { path: b"/train".to_vec(), every_seconds: Some(600) },
            &RefreshIntervalsReply { links: vec![interval] },
        ),
        pair(&ListRefreshIntervals {}, &RefreshIntervalsReply { links: Vec::new() }),
    ]
    .into_iter()
    .flatten()
    .collect()
}
