//! Messages about who reaches buckets, and what changed on both sides.

use millrace_protocol::{
    admin::{FileState, JobFailure},
    bucket::{
        AutoExport, AutoExportsReply, CheckLink, CheckLinkReply, Conflict, ConflictsReply,
        DeletePropagation, DeletePropagationReply, FileReply, HostCheck, HostTrial,
        ListAutoExports, ListConflicts, ListDeletePropagation, ListUploads, SetAutoExport,
        SetDeletePropagation, ShowFile, TryLink, TryLinkReply, UnfinishedUpload, UploadsReply,
    },
    cluster::{Bucket, LinkMode},
    session::Caller,
    target::Tried,
};
use millrace_types::{ByteLen, ErrorKind, Failure, InodeId, LinkId, Timestamp};

use super::{Sample, pair};

pub(super) fn all() -> Vec<Sample> {
    let conflict = Conflict {
        inode: InodeId(7),
        path: b"/run/model.pt".to_vec(),
        size: ByteLen(1 << 20),
        modified: Timestamp(1_700_000_000_000_000_000),
        key: Some("run/model.pt".into()),
    };
    let failure = JobFailure {
        path: b"/run/model.pt".to_vec(),
        failure: Failure::new(ErrorKind::Conflict, "changed in the bucket too"),
    };
    let auto_export = AutoExport {
        link: LinkId(3),
        quiet_seconds: 30,
        waiting: 4,
        files: 1_000,
        bytes: 1 << 40,
        failing: 1,
        failures: vec![failure],
    };
    let caller = Caller { uid: 1000, gid: 1000, groups: vec![27] };
    let shown = FileReply {
        state: FileState::Partial,
        size: ByteLen(1 << 20),
        hydrated: ByteLen(1 << 16),
        origin: Some(("s3://b/train/a".into(), "\"t\"".into())),
    };
    [
        pair(
            &SetAutoExport { path: b"/run".to_vec(), quiet_seconds: Some(30) },
            &AutoExportsReply { links: vec![auto_export] },
        ),
        pair(&ShowFile { caller, inode: InodeId(7), counted: true }, &shown),
        pair(&ListAutoExports {}, &AutoExportsReply { links: Vec::new() }),
        pair(
            &ListConflicts { after: Some(InodeId(6)) },
            &ConflictsReply { conflicts: vec![conflict], more: true },
        ),
    ]
    .into_iter()
    .flatten()
    .chain(checks())
    .chain(deletions())
    .collect()
}

fn checks() -> Vec<Sample> {
    let bucket = Bucket {
        url: "s3://b/train".into(),
        endpoint: Some("http://127.0.0.1:8333".into()),
        region: None,
        credentials: Some("train".into()),
    };
    let denied = Failure::new(ErrorKind::BucketDenied, "the bucket refuses access");
    let refused = denied.clone();
    let untried = vec!["reading was not tried: nothing there to read".into()];
    let tried = Tried { deletes: true, untried };
    let hosts = vec![
        HostCheck { host: "the metadata server".into(), took_ms: 12, result: Ok(()) },
        HostCheck { host: "target host a".into(), took_ms: 900, result: Err(denied) },
    ];
    [
        pair(
            &CheckLink { path: b"/train".to_vec() },
            &CheckLinkReply { bucket: bucket.clone(), mode: LinkMode::ImportExport, hosts },
        ),
        pair(
            &TryLink { path: b"/train".to_vec() },
            &TryLinkReply {
                bucket,
                mode: LinkMode::ImportExport,
                hosts: vec![
                    HostTrial {
                        host: "the metadata server".into(),
                        took_ms: 12,
                        result: Ok(tried),
                    },
                    HostTrial { host: "target host a".into(), took_ms: 900, result: Err(refused) },
                ],
            },
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn deletions() -> Vec<Sample> {
    [
        pair(
            &SetDeletePropagation { path: b"/run".to_vec(), on: true },
            &DeletePropagationReply {
                links: vec![DeletePropagation {
                    link: LinkId(3),
                    waiting: 4,
                    deleted: 5,
                    failing: 6,
                    failures: Vec::new(),
                }],
            },
        ),
        pair(
            &ListUploads { path: b"/run".to_vec(), abort_older_than_seconds: Some(86_400) },
            &UploadsReply {
                uploads: vec![UnfinishedUpload {
                    key: "run/model.pt".to_owned(),
                    upload_id: "u-1".to_owned(),
                    begun: Timestamp(7),
                    is_used: true,
                    aborted: true,
                }],
                total: 8,
                aborted: 9,
            },
        ),
        pair(&ListDeletePropagation {}, &DeletePropagationReply { links: Vec::new() }),
    ]
    .into_iter()
    .flatten()
    .collect()
}
