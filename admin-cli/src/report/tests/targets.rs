//! The golden shapes of `millrace target ...` and `millrace fsck`: what programs read must not
//! change unnoticed.

use millrace_protocol::{
    admin::{TargetState, TargetStatus},
    fsck::{
        Distrust, FlawCount, FlawFinding, FlawKind, FsckCount, FsckFinding, FsckKind, FsckReport,
        FsckState, FsckTarget, NamespaceReport, NamespaceState,
    },
    loss::LossPage,
    target::ContentName,
    upkeep::{
        DescribedTarget, DrainReply, Fault, FindingPlace, FindingReport as ToldFinding, IndexUse,
        ScrubReport as ToldScrub, ScrubState, SpaceUse, TargetDetail, TargetScrub,
    },
};
use millrace_types::{
    ByteLen, ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, ErrorKind, Failure, HostId,
    InodeId, TargetId,
};
use serde_json::{Value, json};

use super::{MOMENT, as_json};
use crate::report::{
    CheckReport, DrainReport, FindingReport, LossReport, TargetDetailReport, TargetScrubReport,
    TargetShowReport,
};

const MOMENT_TEXT: &str = "2026-11-21T04:00:00Z";
const TARGET: TargetId = TargetId([0xab; 8]);

fn scrub() -> ToldScrub {
    ToldScrub {
        state: ScrubState::Running,
        pass: 3,
        begun: MOMENT,
        ended: None,
        under_way: true,
        due: MOMENT,
        checked: ByteLen(11),
        total: ByteLen(12),
        findings: 2,
        bytes_per_second: 13,
        dropped_blocks: 1,
        gathered: ByteLen(14),
        read: ByteLen(15),
    }
}

fn scrub_json() -> Value {
    json!({
        "state": "running", "pass": 3, "under_way": true, "checked_bytes": 11, "total_bytes": 12,
        "findings": 2, "bytes_per_second": 13, "begun": MOMENT_TEXT, "ended": null,
        "due": MOMENT_TEXT, "dropped_blocks": 1, "gathered_bytes": 14, "read_bytes": 15,
    })
}

fn detail() -> TargetDetail {
    TargetDetail {
        disk: "io_uring".into(),
        space: SpaceUse {
            capacity: ByteLen(1000),
            fixed: ByteLen(1),
            ungrown: ByteLen(2),
            free: ByteLen(3),
            reserved: ByteLen(4),
            quarantined: ByteLen(5),
            index: ByteLen(6),
            clean: ByteLen(7),
            written: ByteLen(8),
            kept_back: ByteLen(9),
        },
        loss_count: 21,
        blank: false,
        failed: true,
        checksum_failures: 22,
        index: IndexUse {
            entries: 31,
            nodes: 32,
            height: 2,
            cache: ByteLen(33),
            delta: ByteLen(34),
            node_reads: 35,
        },
        journal_capacity: ByteLen(41),
        journal_used: ByteLen(42),
        scrub: scrub(),
        findings_total: 43,
        findings: Vec::new(),
    }
}

fn described(detail: Result<TargetDetail, Failure>) -> DescribedTarget {
    let status = TargetStatus {
        id: TARGET,
        host: HostId([2; 16]),
        host_name: "store-1".into(),
        addresses: vec!["10.0.0.1:7441".into()],
        state: TargetState::Online,
        capacity: ByteLen(1000),
        used: ByteLen(10),
        groups: 64,
        bad_blocks: 1,
        heard: MOMENT,
    };
    DescribedTarget { status, detail }
}

/// What is known without its daemon.
fn status_json() -> Value {
    json!({
        "id": "abababababababab", "state": "online", "capacity_bytes": 1000, "used_bytes": 10,
        "host": "store-1", "addresses": ["10.0.0.1:7441"], "groups": 64, "bad_blocks": 1,
        "heard": MOMENT_TEXT,
    })
}

fn described_json() -> Value {
    let mut described = status_json();
    let told = json!({
        "disk": "io_uring",
        "space": {
            "fixed_bytes": 1, "ungrown_bytes": 2, "free_bytes": 3, "reserved_bytes": 4,
            "quarantined_bytes": 5, "index_bytes": 6, "clean_bytes": 7, "written_bytes": 8,
            "kept_back_bytes": 9,
        },
        "loss_count": 21, "blank": false, "failed": true, "checksum_failures": 22,
        "index": {
            "entries": 31, "nodes": 32, "height": 2, "cache_bytes": 33, "delta_bytes": 34,
            "node_reads": 35,
        },
        "journal_capacity_bytes": 41, "journal_used_bytes": 42, "scrub": scrub_json(),
        "findings_total": 43, "error": null,
    });
    described.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
    described
}

#[test]
fn the_shape_of_a_target_in_a_list_is_fixed() {
    assert_eq!(as_json(&TargetDetailReport::from(&described(Ok(detail())))), described_json());
    let silent = described(Err(Failure::new(ErrorKind::Unavailable, "no answer")));
    let mut expected = status_json();
    expected["error"] = json!(silent.detail.as_ref().unwrap_err().to_string());
    assert_eq!(as_json(&TargetDetailReport::from(&silent)), expected);
}

#[test]
fn what_only_daemons_know_is_a_problem_of_the_cluster() {
    let problem = |target: DescribedTarget| TargetDetailReport::from(&target).problem();
    assert_eq!(
        problem(described(Ok(detail()))).as_deref(),
        Some("target abababababababab on store-1 takes no changes: its journal failed")
    );
    assert_eq!(problem(described(Ok(TargetDetail { failed: false, ..detail() }))), None);
    let mut silent = described(Err(Failure::new(ErrorKind::Unavailable, "no way there")));
    let told = problem(silent.clone()).unwrap();
    assert!(told.contains("store-1 is online, and") && told.ends_with("no way there"), "{told}");
    // The metadata server says so itself.
    silent.status.state = TargetState::Offline;
    assert_eq!(problem(silent), None);
}

#[test]
fn the_shape_of_a_target_that_is_shown_is_fixed() {
    let chunk = ChunkKey {
        inode: InodeId(5),
        generation: ContentGeneration(2),
        index: ChunkIndex(3),
        copy: CopyIndex(0),
    };
    let finding = |fault| ToldFinding {
        place: FindingPlace { chunk, block: 4 },
        fault,
        page: 600,
        since: MOMENT,
    };
    let findings = vec![
        FindingReport::new(&finding(Fault::Checksum), Some(&b"/a".to_vec())),
        FindingReport::new(&finding(Fault::Unreadable), None),
        FindingReport::new(&finding(Fault::Index), None),
    ];
    let target = TargetDetailReport::from(&described(Ok(detail())));
    let mut expected = described_json();
    let found = |path: Value, fault: &str| {
        json!({
            "inode": 5, "path": path, "generation": 2, "chunk": 3, "block": 4, "fault": fault,
            "page": 600, "since": MOMENT_TEXT,
        })
    };
    expected["findings"] = json!([
        found(json!("/a"), "checksum"),
        found(Value::Null, "unreadable"),
        found(Value::Null, "index"),
    ]);
    assert_eq!(as_json(&TargetShowReport { target, findings }), expected);
}

#[test]
fn the_shape_of_a_scrub_is_fixed() {
    let told = TargetScrub { target: TARGET, scrub: Ok(scrub()) };
    let expected = json!({"id": "abababababababab", "scrub": scrub_json(), "error": null});
    assert_eq!(as_json(&TargetScrubReport::from(&told)), expected);
    // Before the first pass.
    let states = [ScrubState::Off, ScrubState::Paused, ScrubState::Waiting];
    for (state, name) in states.into_iter().zip(["off", "paused", "waiting"]) {
        let told = ToldScrub { state, pass: 0, ended: Some(MOMENT), ..scrub() };
        let told = TargetScrub { target: TARGET, scrub: Ok(told) };
        let mut expected = scrub_json();
        expected["state"] = json!(name);
        expected["pass"] = json!(0);
        expected["begun"] = Value::Null;
        expected["ended"] = json!(MOMENT_TEXT);
        assert_eq!(as_json(&TargetScrubReport::from(&told))["scrub"], expected);
    }
    let failure = Failure::new(ErrorKind::Unavailable, "no answer");
    let words = failure.to_string();
    let silent = TargetScrub { target: TARGET, scrub: Err(failure) };
    let expected = json!({"id": "abababababababab", "scrub": null, "error": words});
    assert_eq!(as_json(&TargetScrubReport::from(&silent)), expected);
}

#[test]
fn the_shape_of_a_drain_check_is_fixed() {
    let mut report = DrainReport { id: "ab".into(), ..DrainReport::default() };
    let reply = DrainReply {
        detail: detail(),
        groups: 4,
        inodes: 10,
        backed_files: 5,
        lost_files: 2,
        lost: ByteLen(77),
        paths: vec![b"/a".to_vec(), b"/b".to_vec()],
        next: None,
    };
    report.add(&reply, 1);
    report.add(&reply, 1);
    let expected = json!({
        "id": "ab", "safe": false, "written_bytes": 8, "clean_bytes": 7, "groups": 4,
        "backed_files": 10, "lost_files": 4, "lost_bytes": 154, "paths": ["/a"], "inodes": 20,
    });
    assert_eq!(as_json(&report), expected);
}

#[test]
fn the_shape_of_a_loss_is_fixed_and_renamed_files_are_told_apart() {
    let mut report = LossReport { id: "ab".into(), ..LossReport::default() };
    let page = LossPage {
        groups: 4,
        given_up: false,
        inodes: 10,
        files: 1,
        paths: vec![b"/a".to_vec(), b"/old".to_vec()],
        next: None,
    };
    report.add(&page);
    report.add(&LossPage { files: 2, ..page });
    let expected = json!({
        "id": "ab", "given_up": false, "groups": 4, "damaged_files": 3,
        "paths": ["/a", "/a", "/old"], "renamed_paths": ["/old"], "inodes": 20,
    });
    assert_eq!(as_json(&report), expected);
}

fn count(contents: u64) -> FsckCount {
    FsckCount { contents, chunks: contents + 1, bytes: ByteLen(contents + 2) }
}

fn count_json(contents: u64) -> Value {
    json!({"contents": contents, "chunks": contents + 1, "size_bytes": contents + 2})
}

#[test]
fn the_shape_of_a_check_is_fixed() {
    let finding = FsckFinding {
        kind: FsckKind::Missing,
        target: TARGET,
        content: ContentName { inode: InodeId(6), generation: ContentGeneration(1) },
        path: Some(b"/b".to_vec()),
        chunks: 7,
        first: ChunkIndex(8),
        bytes: ByteLen(9),
    };
    let report = FsckReport {
        run: 2,
        state: FsckState::Done,
        failure: None,
        automatic: true,
        report_only: false,
        distrust: Some(Distrust { since: MOMENT, reason: "restored".into() }),
        started: Some(MOMENT),
        ended: Some(MOMENT),
        next: None,
        position: InodeId(100),
        high_water: InodeId(101),
        files: 50,
        chunks: 60,
        targets: vec![FsckTarget {
            target: TARGET,
            host_name: "store-1".into(),
            chunks: 61,
            not_checked: Some("offline".into()),
            orphans: count(10),
            held_back: Some("too many".into()),
        }],
        orphans: count(20),
        queued: count(30),
        missing: count(40),
        misplaced: count(50),
        newer: count(60),
        findings: vec![finding],
        truncated: true,
    };
    let expected = json!({
        "run": 2, "state": "done", "failure": null, "automatic": true, "report_only": false,
        "distrust": "restored", "distrusted_since": MOMENT_TEXT, "started": MOMENT_TEXT,
        "ended": MOMENT_TEXT, "next": null, "position": 100, "high_water": 101, "files": 50,
        "chunks": 60,
        "targets": [{
            "id": "abababababababab", "host": "store-1", "chunks": 61, "not_checked": "offline",
            "orphans": count_json(10), "held_back": "too many",
        }],
        "orphans": count_json(20), "queued": count_json(30), "missing": count_json(40),
        "misplaced": count_json(50), "newer": count_json(60),
        "findings": [{
            "kind": "missing", "target": "abababababababab", "inode": 6, "generation": 1,
            "path": "/b", "chunks": 7, "first_chunk": 8, "size_bytes": 9,
        }],
        "truncated": true,
        "namespace": {
            "run": 2, "state": "done", "failure": null, "repair": true, "started": MOMENT_TEXT,
            "ended": MOMENT_TEXT, "records": 70, "inodes": 71,
            "flaws": [{"kind": "wrong-links", "found": 73, "repaired": 72}],
            "findings": [{
                "kind": "wrong-links", "inode": 74, "path": "/c", "text": "why", "repaired": true,
            }],
        },
    });
    assert_eq!(as_json(&CheckReport::of(&report, &namespace())), expected);
}

fn namespace() -> NamespaceReport {
    NamespaceReport {
        run: 2,
        state: NamespaceState::Done,
        failure: None,
        repair: true,
        started: Some(MOMENT),
        ended: Some(MOMENT),
        records: 70,
        inodes: 71,
        flaws: vec![FlawCount { kind: FlawKind::WrongLinks, found: 73, repaired: 72 }],
        findings: vec![FlawFinding {
            kind: FlawKind::WrongLinks,
            inode: InodeId(74),
            path: Some(b"/c".to_vec()),
            text: "why".to_owned(),
            repaired: true,
        }],
    }
}

#[test]
fn the_words_for_the_namespace_are_fixed() {
    use NamespaceState::{Cancelled, Counts, Done, Failed, Inodes, Names, Never};
    let states = [Never, Names, Inodes, Counts, Done, Cancelled, Failed];
    let names = ["never", "names", "inodes", "counts", "done", "cancelled", "failed"];
    assert_eq!(states.map(NamespaceState::name), names);
    let kinds = [
        (FlawKind::DeadName, "dead-name"),
        (FlawKind::LostDirectory, "lost-directory"),
        (FlawKind::WrongKind, "wrong-kind"),
        (FlawKind::WrongParent, "wrong-parent"),
        (FlawKind::SecondPlace, "second-place"),
        (FlawKind::WrongPosition, "wrong-position"),
        (FlawKind::WrongLinks, "wrong-links"),
        (FlawKind::Nameless, "nameless"),
        (FlawKind::Cycle, "cycle"),
        (FlawKind::WrongEntries, "wrong-entries"),
        (FlawKind::WrongAttributes, "wrong-attributes"),
        (FlawKind::WrongAccount, "wrong-account"),
        (FlawKind::WrongSize, "wrong-size"),
        (FlawKind::WrongConflict, "wrong-conflict"),
        (FlawKind::Leftover, "leftover"),
        (FlawKind::LiveReclaim, "live-reclaim"),
        (FlawKind::WrongCount, "wrong-count"),
        (FlawKind::Unsound, "unsound"),
    ];
    assert!(kinds.into_iter().all(|(kind, name)| kind.name() == name));
}

#[test]
fn the_words_for_states_and_kinds_of_a_check_are_fixed() {
    use FsckState::{Cancelled, Confirming, Done, Failed, Listing, Never, Waiting};
    let states = [Never, Listing, Waiting, Confirming, Done, Cancelled, Failed];
    let names = ["never", "listing", "waiting", "confirming", "done", "cancelled", "failed"];
    assert_eq!(states.map(FsckState::name), names);
    let kinds = [FsckKind::Orphan, FsckKind::Missing, FsckKind::Misplaced, FsckKind::Newer];
    assert_eq!(kinds.map(FsckKind::name), ["orphan", "missing", "misplaced", "newer"]);
}
