//! The golden shapes: what programs read must not change unnoticed.

use std::time::Duration;

use millrace_protocol::{
    admin::{
        ChunkPlace, JobFailure, Keep, LogStatus, ResolveReply, SessionStatus, StateReply, StateSum,
        TargetStatus,
    },
    ahead::FetchPolicy,
    cluster::Bucket,
    job_detail::{DirectoryProgress, JobDetail},
    known_state::SilentTarget,
    release::PinReply,
    requests::RequestCounts,
};
use millrace_types::{
    ByteLen, ChunkIndex, ChunkSize, ErrorKind, Failure, GroupId, HostId, InodeId, JobId, LinkId,
    LogIndex, MapEpoch, SessionId, TargetId, Timestamp,
};
use serde_json::{Value, json};

use super::*;

mod targets;

fn as_json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

const MOMENT: Timestamp = Timestamp(1_795_233_600_000_000_000);

fn link() -> LinkStatus {
    LinkStatus {
        id: LinkId(1),
        path: b"/train".to_vec(),
        bucket: Bucket {
            url: "s3://bucket/train".into(),
            endpoint: Some("http://127.0.0.1:8333".into()),
            region: None,
            credentials: None,
        },
        mode: LinkMode::ReadOnly,
    }
}

fn job() -> Job {
    Job {
        id: JobId(7),
        kind: JobKind::Export,
        path: b"/out".to_vec(),
        state: JobState::Failed,
        files_done: 2,
        files_total: 3,
        bytes_done: 20,
        bytes_total: 30,
        errors: 1,
        failures: vec![JobFailure {
            path: b"/out/c".to_vec(),
            failure: Failure::new(ErrorKind::BucketDenied, "PUT out/c"),
        }],
        started: MOMENT,
        ended: None,
    }
}

fn job_json() -> Value {
    json!({
        "id": 7, "kind": "export", "path": "/out", "state": "failed",
        "files_done": 2, "files_total": 3, "bytes_done": 20, "bytes_total": 30, "errors": 1,
        "failures": [{"path": "/out/c", "error": "the bucket refuses access: PUT out/c"}],
        "started": "2026-11-21T04:00:00Z", "ended": null,
    })
}

fn link_json() -> Value {
    json!({
        "path": "/train", "url": "s3://bucket/train", "id": 1, "mode": "read-only",
        "endpoint": "http://127.0.0.1:8333", "region": null, "credentials": null,
    })
}

#[test]
fn the_shape_of_a_status_is_fixed() {
    let status = ClusterStatusReply {
        health: Health::Degraded,
        problems: vec!["target ab is offline".into()],
        cluster: "00ff".into(),
        version: "0.1.0".into(),
        started: MOMENT,
        server_time: MOMENT,
        log: LogStatus { applied: LogIndex(9), synced: LogIndex(8), size: ByteLen(4096) },
        map_epoch: MapEpoch(2),
        inodes: 5,
        sessions: vec![SessionStatus {
            session: SessionId(3),
            host: HostId([1; 16]),
            host_name: "gpu-1".into(),
            expires: MOMENT,
            write_opens: 1,
        }],
        targets: vec![TargetStatus {
            id: TargetId([0xab; 8]),
            host: HostId([2; 16]),
            host_name: "store-1".into(),
            addresses: vec!["10.0.0.1:7441".into()],
            state: TargetState::Offline,
            capacity: ByteLen(1000),
            used: ByteLen(10),
            groups: 64,
            bad_blocks: 0,
            heard: MOMENT,
        }],
        links: vec![link()],
        jobs: vec![job()],
        reclaim_entries: 4,
    };
    let expected = json!({
        "health": "degraded",
        "problems": ["target ab is offline"],
        "cluster": "00ff",
        "servers": [{
            "address": "meta-1:7440", "role": "metadata", "state": "online", "version": "0.1.0",
            "started": "2026-11-21T04:00:00Z", "log_applied": 9, "log_synced": 8,
            "log_size_bytes": 4096,
        }],
        "inodes": 5,
        "reclaim_entries": 4,
        "targets": [{
            "id": "abababababababab", "state": "offline", "capacity_bytes": 1000,
            "used_bytes": 10, "host": "store-1", "addresses": ["10.0.0.1:7441"], "groups": 64,
            "bad_blocks": 0, "heard": "2026-11-21T04:00:00Z",
        }],
        "sessions": [{
            "id": 3, "host": "gpu-1", "expires": "2026-11-21T04:00:00Z", "write_opens": 1,
        }],
        "links": [link_json()],
        "jobs": [job_json()],
    });
    assert_eq!(as_json(&StatusReport::new(&status, "meta-1:7440".into())), expected);
}

#[test]
fn an_unreachable_cluster_has_the_same_fields() {
    let report = StatusReport::unreachable(&["meta-1:7440".into()], "no answer".into());
    let report = as_json(&report);
    assert_eq!(report["health"], "unreachable");
    assert_eq!(report["problems"], json!(["no answer"]));
    assert_eq!(report["servers"][0]["state"], "unreachable");
    for list in ["targets", "links", "jobs", "sessions"] {
        assert_eq!(report[list], json!([]), "{list}");
    }
}

#[test]
fn the_shapes_of_a_job_and_a_link_are_fixed() {
    assert_eq!(as_json(&JobReport::from(&job())), job_json());
    assert_eq!(as_json(&LinkReport::from(&link())), link_json());
}

#[test]
fn the_shapes_of_link_options_and_of_a_resolution_are_fixed() {
    let options =
        LinkOptions { id: LinkId(1), refresh_seconds: 300, attributes: AttributeSource::Objects };
    let mut expected = link_json();
    expected["refresh_seconds"] = json!(300);
    expected["attributes"] = json!("objects");
    let report = LinkReport::from(&link()).with_options(&[options]);
    assert_eq!(as_json(&report), expected);
    let failure = ErrorKind::Conflict.into();
    let export = AutoExport {
        link: LinkId(1),
        quiet_seconds: 30,
        waiting: 2,
        files: 7,
        bytes: 70,
        failing: 1,
        failures: vec![JobFailure { path: b"/a".to_vec(), failure }],
    };
    expected["auto_export"] = json!({
        "quiet_seconds": 30, "waiting": 2, "files": 7, "bytes": 70, "failing": 1,
        "failures": [{"path": "/a", "error": ErrorKind::Conflict.to_string()}],
    });
    let report = report.with_auto_export(&[export]);
    assert_eq!(as_json(&report), expected);
    let fetches = LinkFetches { link: LinkId(1), policy: FetchPolicy::Ahead, files: 9, bytes: 90 };
    expected["fetch"] = json!({"policy": "ahead", "files": 9, "bytes": 90});
    let report = report.with_fetches(&[fetches]);
    assert_eq!(as_json(&report), expected);
    let refresh = RefreshInterval {
        link: LinkId(1),
        every_seconds: 600,
        running: true,
        ended: None,
        directories: 8,
        failed: 1,
        failure: Some("away".into()),
    };
    expected["refresh"] = json!({
        "every_seconds": 600, "running": true, "ended": null, "directories": 8, "failed": 1,
        "failure": "away",
    });
    let report = report.with_refreshes(&[refresh]);
    assert_eq!(as_json(&report), expected);
    let removals = [(2, false), (1, true)];
    let removals = removals.map(|(id, discard)| Removal { link: LinkId(id), discard });
    expected["removal"] = json!({"discard": true});
    assert_eq!(as_json(&report.with_removals(&removals)), expected);
}

#[test]
fn the_shapes_of_decisions_are_fixed() {
    let origin = Some(("s3://bucket/train/a".into(), "t".into()));
    let reply = ResolveReply { removed: false, size: ByteLen(5), origin };
    let decided = || ResolveReport::new("/mnt/a".into(), Keep::Local, &reply);
    let origin = json!({"url": "s3://bucket/train/a", "tag": "t"});
    assert_eq!(
        as_json(&decided()),
        json!({
            "path": "/mnt/a", "keep": "local", "removed": false, "size_bytes": 5, "origin": origin,
        })
    );
    let mut report = ResolutionsReport::new(Keep::Local, false);
    (report.decided, report.untried) = (1, 1);
    report.files = vec![decided().into(), ResolvedReport::new("mr:/b".into(), "untried")];
    assert_eq!(
        as_json(&report),
        json!({
            "keep": "local", "dry_run": false, "decided": 1, "failed": 0, "untried": 1,
            "files": [
                {"path": "/mnt/a", "outcome": "decided", "error": null, "removed": false,
                 "size_bytes": 5, "origin": origin},
                {"path": "mr:/b", "outcome": "untried", "error": null, "removed": null,
                 "size_bytes": null, "origin": null},
            ],
        })
    );
}

#[test]
fn the_shapes_of_pins_are_fixed() {
    let reply = PinReply { changed: true, above: vec![b"/train".to_vec()] };
    assert_eq!(
        as_json(&PinReport::new("mr:/train/a".into(), true, &reply)),
        json!({"path": "mr:/train/a", "pinned": true, "changed": true, "above": ["/train"]})
    );
    let pinned = PinnedReport { path: Some("/train/a".into()), inode: 7 };
    assert_eq!(as_json(&pinned), json!({"path": "/train/a", "inode": 7}));
}

#[test]
fn the_shape_of_a_state_is_fixed() {
    let state = StateReply {
        state: None,
        directory: true,
        size: ByteLen(30),
        hydrated: ByteLen(10),
        sums: vec![StateSum { state: FileState::Partial, files: 2, size: ByteLen(20) }],
        unlisted_directories: 1,
        origin: Some(("s3://b/x".into(), "\"tag\"".into())),
    };
    let silent = SilentTarget { target: TargetId([2; 8]), files: 5, reason: "away".into() };
    let reply = KnownStateReply {
        state,
        unknown_files: 4,
        unknown_size: ByteLen(10),
        silent: vec![silent],
    };
    let expected = json!({
        "path": "mr:/x", "state": null, "size_bytes": 30, "hydrated_bytes": 10,
        "directory": true,
        "states": [{"state": "partial", "files": 2, "size_bytes": 20}],
        "unlisted_directories": 1,
        "unknown_files": 4, "unknown_bytes": 10,
        "silent_targets": [{"id": "0202020202020202", "files": 5, "error": "away"}],
        "origin": {"url": "s3://b/x", "tag": "\"tag\""},
    });
    assert_eq!(as_json(&StateReport::new("mr:/x".into(), &reply)), expected);
    let state = StateReply { state: Some(FileState::Hydrated), ..reply.state };
    let file = KnownStateReply { state, ..reply };
    assert_eq!(as_json(&StateReport::new("f".into(), &file))["state"], "hydrated");
}

#[test]
fn the_shape_of_a_layout_is_fixed() {
    let reply = LayoutReply {
        inode: InodeId(5),
        directory: false,
        chunk_size: ChunkSize::DEFAULT,
        stripe_count: -1,
        pool: "default".into(),
        size: 9,
        inline_bytes: 0,
        chunks: vec![ChunkPlace {
            index: ChunkIndex(0),
            group: GroupId(3),
            targets: vec![TargetId([1; 8])],
        }],
        truncated: false,
    };
    let expected = json!({
        "path": "f", "directory": false, "chunk_size_bytes": 8_388_608, "stripe_count": -1,
        "pool": "default", "size_bytes": 9, "inline_bytes": 0,
        "chunks": [{"index": 0, "group": 3, "targets": ["0101010101010101"]}],
        "truncated": false,
    });
    assert_eq!(as_json(&StripeReport::new("f".into(), &reply)), expected);
}

#[test]
fn what_was_asked_and_how_far_directories_are_is_told_with_links_and_jobs() {
    let counts = RequestCounts::new([1, 2, 3, 4, 5, 6, 7], 8, 9, 10);
    let asked = json!({
        "list": 1, "head": 2, "get": 3, "put": 4, "part": 5, "upload": 6, "other": 7, "failed": 8,
        "received_bytes": 9, "sent_bytes": 10
    });
    let bucket =
        |link| BucketRequests { url: "s3://bucket/".into(), links: vec![LinkId(link)], counts };
    let buckets = vec![bucket(2), bucket(1)];
    let reply = RequestsReply { buckets, silent: Vec::new() };
    let report = as_json(&LinkReport::from(&link()).with_requests(&reply));
    assert_eq!(report["requests"], asked);
    assert_eq!(report["requests_without"], Value::Null, "nobody's are missing");
    let reply = RequestsReply { silent: vec!["store-2".into()], ..reply };
    let report = as_json(&LinkReport::from(&link()).with_requests(&reply));
    assert_eq!(report["requests"], asked);
    assert_eq!(report["requests_without"], json!(["store-2"]));
    let directory = DirectoryProgress {
        name: b"val".to_vec(),
        files_total: 2,
        files_done: 1,
        bytes_total: 4,
        bytes_done: 3,
        errors: 5,
    };
    let before = DirectoryProgress { files_done: 0, bytes_done: 1, ..directory.clone() };
    let before = JobDetail { directories: vec![before], ..JobDetail::default() };
    let detail = JobDetail { directories: vec![directory], ..JobDetail::default() };
    let earlier = EarlierLook { detail: before, elapsed: Duration::from_secs(1) };
    let directories = Some(DirectoriesReport::of(JobKind::Export, &detail, None));
    let paced = Some(DirectoriesReport::of(JobKind::Export, &detail, Some(&earlier)));
    let requests = Some(counts.into());
    let report = as_json(&JobReport { requests, directories, ..JobReport::from(&job()) });
    assert_eq!(report["requests"], asked);
    let mut row = json!({
        "name": "val", "files_done": 1, "files_total": 2, "bytes_done": 3, "bytes_total": 4,
        "errors": 5
    });
    assert_eq!(report["directories"], json!([row]));
    assert_eq!(report["other_directories"], Value::Null);
    let report = as_json(&JobReport { directories: paced, ..JobReport::from(&job()) });
    row["bytes_per_second"] = json!(2);
    row["files_per_second"] = json!(1);
    row["seconds_left"] = json!(0);
    assert_eq!(report["directories"], json!([row]));
    let mut expected = job_json();
    expected["bytes_per_second"] = json!(2_000_000);
    expected["seconds_left"] = json!(30);
    let (bytes_per_second, seconds_left) = (Some(2_000_000), Some(30));
    let pace = Some(PaceReport { bytes_per_second, files_per_second: None, seconds_left });
    assert_eq!(as_json(&JobReport { pace, ..JobReport::from(&job()) }), expected);
}
