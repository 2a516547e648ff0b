//! Imports that go on with earlier ones have the time when those were asked for.

use millrace_metadata_server::{
    command::{AddJob, Command},
    store::{
        keys,
        records::{self, Applied, JobRecord},
    },
};
use millrace_protocol::{
    admin::{Job, JobKind, JobState},
    cluster::LinkMode,
    session::Caller,
};
use millrace_types::{InodeId, JobId, Timestamp};

use crate::levels::{Log, linked};

fn import(started: Timestamp) -> Command {
    let job = Job {
        id: JobId(0),
        kind: JobKind::Import,
        path: b"/data".to_vec(),
        state: JobState::Queued,
        files_done: 0,
        files_total: 0,
        bytes_done: 0,
        bytes_total: 0,
        errors: 0,
        failures: Vec::new(),
        started,
        ended: None,
    };
    Command::AddJob(AddJob { job, caller: Caller::ROOT, root: InodeId(2) })
}

/// The time of the last command, and when a job was asked for.
fn times(log: &Log, id: u64) -> (Timestamp, Timestamp) {
    let applied: Option<Applied> = records::read(&log.store, &keys::applied()).unwrap();
    let record: Option<JobRecord> = records::read(&log.store, &keys::job(JobId(id))).unwrap();
    (applied.unwrap().time, record.unwrap().job.started)
}

#[test]
fn imports_go_on_with_earlier_ones_from_the_twenty_fourth_level_on() {
    let earlier = Timestamp(1);
    let mut log = linked(LinkMode::ReadOnly);
    log.apply(Command::SetFeatureLevel(23)).unwrap();
    log.apply(import(earlier)).unwrap();
    let (now, started) = times(&log, 1);
    assert_eq!(started, now);
    log.apply(Command::SetFeatureLevel(24)).unwrap();
    log.apply(import(earlier)).unwrap();
    assert_eq!(times(&log, 2).1, earlier);
    // One that goes on with none; and nothing was asked for later than it was recorded.
    for (id, given) in [(3, Timestamp(0)), (4, Timestamp(i64::MAX))] {
        log.apply(import(given)).unwrap();
        let (now, started) = times(&log, id);
        assert_eq!(started, now, "{given:?}");
    }
}
