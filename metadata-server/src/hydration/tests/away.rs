//! What is told and decided of files while a target is away, on which they lie or do not.

use millrace_protocol::{
    admin::{FileState, JobKind, JobState, Keep, ShowState, StateReply, TargetState},
    bucket::{FileReply, ShowFile},
    cluster::LinkMode,
    known_state::{KnownStateReply, ShowKnownState},
};
use millrace_types::{ErrorKind, Failure, InodeId, MIB, TargetId};

use super::{
    conflicts::{conflict, resolve},
    moved::{list, rename},
    server::{FIRST, ROOT, SECOND, World},
};
use crate::namespace::ObjectState;

fn of(path: &str) -> ShowState {
    ShowState { caller: ROOT, path: path.as_bytes().to_vec() }
}

/// A directory below `/data`, the target that its files lie on, and their names.
type Directory<'a> = (&'a str, TargetId, &'a [&'a str]);

/// Files of five bytes, all of them imported and here.
async fn world(directories: &[Directory<'_>]) -> World {
    let world = World::new(LinkMode::ImportExport).await;
    let paths = |(directory, _, names): &Directory<'_>| -> Vec<String> {
        names.iter().map(|name| format!("{directory}/{name}")).collect()
    };
    for key in directories.iter().flat_map(paths) {
        world.put(&key, b"12345");
    }
    list(&world, "/data").await;
    for directory in directories {
        world.server.import_to(directory.1);
        list(&world, &format!("/data/{}", directory.0)).await;
        for key in paths(directory) {
            world.hold(&format!("/data/{key}"), 5).await;
        }
    }
    world
}

impl World {
    /// A target does not answer from now on, and nobody knows that yet.
    fn send_away(&self, target: TargetId) {
        self.server.troubles.away.lock().unwrap().insert(target);
    }

    fn asked(&self) -> Vec<TargetId> {
        self.server.troubles.asked.lock().unwrap().clone()
    }

    async fn known(&self, path: &str) -> Result<KnownStateReply, Failure> {
        self.hydration.show_known_state(b"", &ShowKnownState { of: of(path) }).await
    }

    async fn told(&self, path: &str) -> Result<StateReply, Failure> {
        self.hydration.show_state(b"", &of(path)).await
    }

    async fn file(&self, inode: InodeId) -> Result<FileReply, Failure> {
        let request = ShowFile { caller: ROOT, inode, counted: true };
        self.hydration.show_file(b"", &request).await
    }
}

fn names(failure: &Failure, target: TargetId) -> bool {
    failure.message.contains(&target.to_string())
}

#[tokio::test]
async fn a_target_matters_for_the_files_that_may_lie_on_it_alone() {
    let world = world(&[("one", FIRST, &["elsewhere"]), ("two", SECOND, &["there"])]).await;
    let elsewhere = world.find("/data/one/elsewhere").await.unwrap().id;
    let there = world.find("/data/two/there").await.unwrap().id;
    world.send_away(SECOND);
    let known = world.known("/data/one/elsewhere").await.unwrap();
    assert_eq!((known.state.state, known.silent.len()), (Some(FileState::Hydrated), 0));
    assert_eq!(world.told("/data/one/elsewhere").await, Ok(known.state));
    assert_eq!(world.file(elsewhere).await.unwrap().hydrated.0, 5);
    assert_eq!(world.asked(), [FIRST; 3]);

    for failure in [
        world.known("/data/two/there").await.unwrap_err(),
        world.told("/data/two/there").await.unwrap_err(),
    ] {
        assert_eq!(failure.kind, ErrorKind::Unavailable);
        assert!(names(&failure, SECOND), "{failure}");
    }
    let failure = world.file(there).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Internal, "it is not to be repeated");
    assert!(names(&failure, SECOND), "{failure}");

    // A state that depends on no target is told.
    world.write("/data/two/there", b"newer").await;
    let known = world.known("/data/two/there").await.unwrap();
    assert_eq!((known.state.state, known.unknown_files), (Some(FileState::Dirty), 0));
    assert_eq!((known.silent[0].target, known.silent[0].files), (SECOND, 1));
}

#[tokio::test]
async fn a_tree_is_summed_without_what_a_silent_target_holds_and_that_is_told() {
    let world = world(&[
        ("one", FIRST, &["elsewhere"]),
        ("two", SECOND, &["there"]),
        ("three", SECOND, &["there", "changed"]),
    ])
    .await;
    world.write("/data/three/changed", b"newer").await;
    let whole = world.known("/data").await.unwrap();
    assert_eq!((whole.unknown_files, whole.silent.len()), (0, 0));
    assert_eq!((whole.state.size.0, whole.state.hydrated.0), (20, 20));

    world.server.troubles.asked.lock().unwrap().clear();
    world.send_away(SECOND);
    let known = world.known("/data").await.unwrap();
    assert_eq!((known.unknown_files, known.unknown_size.0), (2, 10));
    let [silent] = &known.silent[..] else { panic!("one is silent: {:?}", known.silent) };
    assert_eq!((silent.target, silent.files), (SECOND, 3));
    assert!(!silent.reason.is_empty());
    let sums: Vec<_> = known.state.sums.iter().map(|sum| (sum.state, sum.files)).collect();
    assert_eq!(sums, [(FileState::Hydrated, 1), (FileState::Dirty, 1)]);
    assert_eq!((known.state.size.0, known.state.hydrated.0), (20, 5));
    assert_eq!(known.state.state, None);
    let asked = world.asked();
    let waits = asked.iter().filter(|target| **target == SECOND);
    assert_eq!(waits.count(), 1, "each directory is a page of its own: {asked:?}");

    // Who expects all of it gets no part of it.
    let failure = world.told("/data").await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Unavailable);
    assert!(names(&failure, SECOND), "{failure}");
}

#[tokio::test]
async fn a_target_that_is_known_to_be_away_is_not_asked() {
    let world = world(&[("two", SECOND, &["there"])]).await;
    let there = world.find("/data/two/there").await.unwrap().id;
    let stand = |state| world.server.troubles.standing.lock().unwrap().insert(SECOND, state);
    stand(TargetState::Offline);
    let known = world.known("/data").await.unwrap();
    assert_eq!((known.unknown_files, known.silent[0].target), (1, SECOND));
    assert!(known.silent[0].reason.contains("millrace status"), "{:?}", known.silent);
    assert!(world.file(there).await.is_err());
    assert!(world.asked().is_empty());
    for late in [TargetState::Suspect, TargetState::Joining, TargetState::Online] {
        stand(late);
        assert_eq!(world.known("/data").await.unwrap().unknown_files, 0, "{late:?}");
    }
}

#[tokio::test]
async fn of_a_file_on_two_targets_that_is_counted_which_one_tells() {
    let world = World::new(LinkMode::ReadOnly).await;
    // A chunk on each.
    let size = 9 * MIB;
    world.put("large", &vec![7; usize::try_from(size).unwrap()]);
    world.server.import_to(FIRST);
    list(&world, "/data").await;
    world.hold("/data/large", 8 * MIB).await;
    assert_eq!(world.told("/data").await.unwrap().state, Some(FileState::Partial));
    world.send_away(SECOND);
    let known = world.known("/data").await.unwrap();
    assert_eq!((known.unknown_files, known.unknown_size.0), (1, size));
    assert_eq!((known.state.state, known.state.hydrated.0), (None, 8 * MIB));
}

#[tokio::test]
async fn a_file_of_two_names_is_asked_for_once() {
    let world = world(&[("one", FIRST, &["file"])]).await;
    let id = world.hold("/data/one/file", 3).await;
    world.hard_link(id, "/data/one", "again").await;
    let known = world.known("/data").await.unwrap();
    let sums: Vec<_> = known.state.sums.iter().map(|sum| (sum.state, sum.files)).collect();
    assert_eq!(sums, [(FileState::Partial, 2)], "what is there is not counted twice for each");
}

#[tokio::test]
async fn the_local_version_is_kept_where_every_target_says_that_it_is_whole() {
    let world = World::new(LinkMode::ImportExport).await;
    world.server.import_to(FIRST);
    conflict(&world, "elsewhere", b"mine").await;
    world.server.import_to(SECOND);
    conflict(&world, "there", b"mine").await;
    world.send_away(SECOND);
    resolve(&world, "/data/elsewhere", Keep::Local).await.unwrap();
    assert_eq!(world.state("/data/elsewhere").await, ObjectState::Dirty);

    let failure = resolve(&world, "/data/there", Keep::Local).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Unavailable);
    assert!(names(&failure, SECOND) && failure.message.contains("/data/there"), "{failure}");
    assert_eq!(world.state("/data/there").await, ObjectState::Conflict, "nothing is decided");
    // The bucket's needs nothing that is there.
    resolve(&world, "/data/there", Keep::Bucket).await.unwrap();
}

#[tokio::test]
async fn an_object_is_replaced_unless_a_file_that_may_need_it_lies_where_nobody_answers() {
    let world = world(&[("one", FIRST, &["file"]), ("two", SECOND, &["file"])]).await;
    for directory in ["/data/one", "/data/two"] {
        rename(&world, &format!("{directory}/file"), &format!("{directory}/old")).await;
        world.write(&format!("{directory}/file"), b"second version").await;
    }
    world.send_away(SECOND);
    world.export("/data/one/file").await;
    let job = world.job(JobKind::Export, "/data/two/file").await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1));
    let failure = &job.failures[0].failure;
    assert_eq!(failure.kind, ErrorKind::Unavailable);
    assert!(names(failure, SECOND) && failure.message.contains("/data/two/old"), "{failure}");
    world.server.troubles.away.lock().unwrap().clear();
    world.export("/data/two/file").await;
}

#[tokio::test]
async fn a_job_tells_from_where_it_fetches_a_file_or_a_tree() {
    let world = world(&[("set", FIRST, &["file"])]).await;
    for (path, end) in [("/data/set/file", "/set/file"), ("/data/set", "/set/")] {
        let id = world.job(JobKind::Hydrate, path).await.id;
        let source = world.hydration.show_job_detail(id).await.unwrap().source.unwrap();
        assert!(source.ends_with(end), "{source}");
    }
}
