//! Imports of some directories of a tree, and those that only count.

use millrace_protocol::{
    admin::{Job, JobKind, JobState, StartJob},
    cluster::LinkMode,
    job_options::{JobOptions, StartWithOptions},
    selection::{RetryJob, Selection, StartSelected},
};
use millrace_types::{ErrorKind, FileName, InodeId};

use super::server::{ROOT, World};
use crate::{
    hydration::{Environment as _, import::linked},
    namespace::tree,
};

fn patterns(include: &[&str], exclude: &[&str]) -> Selection {
    let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
    Selection { include: owned(include), exclude: owned(exclude), ..Selection::default() }
}

impl World {
    async fn imported(&self, path: &str, selection: Selection, dry_run: bool) -> Job {
        let path = path.as_bytes().to_vec();
        let start = StartJob { caller: ROOT, kind: JobKind::Import, path };
        let request = StartSelected { start, selection, dry_run };
        let id = self.hydration.start_selected(b"", &request).await.unwrap().id;
        self.run_until(|job| job.id == id && job.state.is_final()).await
    }

    /// Whether a directory was listed; `None` where nothing is known of it. Asks nobody.
    async fn was_listed(&self, path: &str) -> Option<bool> {
        let names: Vec<_> = path
            .split('/')
            .filter(|name| !name.is_empty())
            .map(|name| FileName::parse(name.as_bytes()).unwrap())
            .collect();
        let query = self.server.read(move |view| {
            let mut at = InodeId::ROOT;
            for name in &names {
                let Some(entry) = tree::entry(view, at, name).unwrap() else { return Ok(None) };
                at = entry.inode;
            }
            Ok(linked(view, at)?.map(|linked| linked.listed.is_some()))
        });
        query.await.unwrap()
    }
}

async fn with_tree() -> World {
    let world = World::new(LinkMode::ReadOnly).await;
    for key in ["train/a/x", "train/old/y", "val/z", "top"] {
        world.put(key, b"12345");
    }
    world
}

#[tokio::test]
async fn an_import_lists_the_directories_that_its_patterns_choose_and_each_as_a_whole() {
    let world = with_tree().await;
    let job = world.imported("/data", patterns(&["train/**"], &["old"]), false).await;
    assert_eq!((job.state, job.errors), (JobState::Succeeded, 0), "{:?}", job.failures);
    let mut listed = Vec::new();
    for path in ["/data", "/data/train", "/data/train/a", "/data/train/old", "/data/val"] {
        listed.push(world.was_listed(path).await);
    }
    assert_eq!(listed, [Some(true), Some(true), Some(true), Some(false), Some(false)]);
    // Names of a directory that is listed are there, whatever they are called.
    let asked = world.bucket.counters().requests_total();
    assert_eq!(world.find("/data/top").await.unwrap().size, 5);
    assert_eq!(world.find("/data/train/a/x").await.unwrap().size, 5);
    assert_eq!(world.bucket.counters().requests_total(), asked);
    // What was left out comes when somebody looks.
    assert_eq!(world.find("/data/val/z").await.unwrap().size, 5);

    let retry = RetryJob { caller: ROOT, id: job.id };
    let again = world.hydration.retry_job(&retry).await.unwrap().id;
    world.run_until(|job| job.id == again && job.state.is_final()).await;
    let shown = world.hydration.show_selection(again).await.unwrap();
    assert_eq!(shown.selection, patterns(&["train/**"], &["old"]));
    assert_eq!(world.was_listed("/data/train/old").await, Some(false));
    world.job(JobKind::Import, "/data").await;
    assert_eq!(world.was_listed("/data/train/old").await, Some(true));
}

#[tokio::test]
async fn a_dry_run_counts_the_directories_that_are_known_and_asks_no_bucket() {
    let world = with_tree().await;
    let asked = world.bucket.counters().requests_total();
    let dry = async |path, include: &[&str], exclude: &[&str]| {
        let job = world.imported(path, patterns(include, exclude), true).await;
        assert_eq!((job.state, job.files_done), (JobState::Succeeded, 0), "{:?}", job.failures);
        (job.files_total, job.bytes_total)
    };
    assert_eq!(dry("/data", &[], &[]).await, (1, 0), "of what is below nobody knows");
    assert_eq!(dry("/", &[], &[]).await, (1, 0), "and what has no bucket is not listed");
    assert_eq!(world.bucket.counters().requests_total(), asked);
    assert_eq!(world.was_listed("/data").await, Some(false));

    world.job(JobKind::Import, "/data").await;
    let asked = world.bucket.counters().requests_total();
    assert_eq!(dry("/data", &[], &[]).await, (5, 0), "each of them again");
    assert_eq!(dry("/data", &["train/**"], &["old"]).await, (3, 0));
    assert_eq!(dry("/data/top", &[], &[]).await, (1, 5), "its object would be asked for");
    assert_eq!(world.bucket.counters().requests_total(), asked);
}

#[tokio::test]
async fn what_chooses_files_is_refused_for_an_import() {
    let world = with_tree().await;
    let older = Selection { age_min: Some(1), ..Selection::default() };
    for selection in [patterns(&["*"], &[]), patterns(&["a["], &[]), older] {
        let start = StartJob { caller: ROOT, kind: JobKind::Import, path: b"/data".to_vec() };
        let selected =
            StartSelected { start: start.clone(), selection: selection.clone(), dry_run: false };
        let refused = world.hydration.start_selected(b"", &selected).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument);
        let options = JobOptions { report: true, ..JobOptions::default() };
        let request = StartWithOptions { start, selection, dry_run: false, options };
        let same = world.hydration.start_with_options(b"", &request).await.unwrap_err();
        assert_eq!(same, refused);
    }
    assert!(world.hydration.list_jobs().await.unwrap().is_empty());
}
