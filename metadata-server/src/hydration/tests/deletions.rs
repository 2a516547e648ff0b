//! What is removed here is deleted in the bucket, where the link says so: that version, when nobody
//! here needs it any more, and never before.

use std::{fs, sync::Arc, time::Duration};

use millrace_protocol::{
    admin::{AddLink, Job, JobKind, JobState, StartJob},
    bucket::{DeletePropagation, ListUploads, SetAutoExport, SetDeletePropagation},
    cluster::LinkMode,
    job_options::{JobOptions, StartWithOptions},
    metadata::RenameMode,
    selection::Selection,
};
use millrace_types::{ErrorKind, FileName, InodeId};
use tokio::time::timeout;

use super::{
    moved::{list, refresh_all},
    server::{Fault, LIMIT, ROOT, World, bucket_of},
};
use crate::{
    command::{self, Command},
    hydration::Environment,
    namespace::ObjectState,
    store::keys,
};

impl World {
    async fn propagate(&self, on: bool) -> Vec<DeletePropagation> {
        let request = SetDeletePropagation { path: b"/data".to_vec(), on };
        self.hydration.set_delete_propagation(&request).await.unwrap()
    }

    pub(super) async fn propagating() -> Self {
        let world = Self::new(LinkMode::ImportExport).await;
        assert_eq!(world.propagate(true).await.len(), 1);
        world
    }

    pub(super) async fn remove_name(&self, path: &str, directory: bool) {
        let remove = self.removal(path, directory).await;
        self.server.execute(remove, false).await.unwrap();
    }

    pub(super) async fn removal(&self, path: &str, directory: bool) -> Command {
        let (above, name) = path.rsplit_once('/').unwrap();
        let remove = command::Remove {
            caller: ROOT,
            parent: self.find(above).await.unwrap().id,
            name: FileName::parse(name.as_bytes()).unwrap(),
            directory,
            readers: Vec::new(),
        };
        Command::Remove(remove)
    }

    pub(super) async fn move_name(&self, from: &str, to: &str) {
        let rename = self.renaming(from, to).await;
        self.server.execute(rename, false).await.unwrap();
    }

    pub(super) async fn renaming(&self, from: &str, to: &str) -> Command {
        let (above, source_name) = from.rsplit_once('/').unwrap();
        let (below, target_name) = to.rsplit_once('/').unwrap();
        let rename = command::Rename {
            caller: ROOT,
            source_parent: self.find(above).await.unwrap().id,
            source_name: FileName::parse(source_name.as_bytes()).unwrap(),
            target_parent: self.find(below).await.unwrap().id,
            target_name: FileName::parse(target_name.as_bytes()).unwrap(),
            mode: RenameMode::Replace,
            readers: Vec::new(),
        };
        Command::Rename(rename)
    }

    pub(super) async fn deletes(&self) -> DeletePropagation {
        self.hydration.list_delete_propagation().await.unwrap().remove(0)
    }

    pub(super) async fn export_all(&self) -> Job {
        self.job(JobKind::Export, "/data").await
    }

    /// Whether anything is recorded of a name that was removed.
    async fn hides(&self, directory: InodeId, name: &'static str) -> bool {
        let query = self.server.read(move |view| {
            let name = name.as_bytes();
            let keys = [keys::whiteout(directory, name), keys::moved_file(directory, name)];
            Ok(keys.iter().any(|key| view.get(key).unwrap().is_some()))
        });
        query.await.unwrap()
    }
}

#[tokio::test]
async fn a_removed_file_takes_its_object_along_with_the_next_export_and_only_if_the_link_says_so() {
    let world = World::new(LinkMode::ImportExport).await;
    for name in ["kept", "gone", "other"] {
        world.put(name, b"content");
    }
    for name in ["kept", "gone", "other"] {
        world.find(&format!("/data/{name}")).await.unwrap();
    }
    world.remove_name("/data/kept", false).await;
    world.propagate(true).await;
    world.remove_name("/data/gone", false).await;
    assert!(world.object("gone").exists() && world.deletes().await.waiting == 1);
    let job = world.export_all().await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 2), "{:?}", job.failures);
    assert!(!world.object("gone").exists());
    assert!(world.object("kept").exists(), "it was removed before the link said so");
    assert!(world.object("other").exists());
    let deletes = world.deletes().await;
    assert_eq!((deletes.waiting, deletes.deleted, deletes.failing), (0, 1, 0));
    world.remove_name("/data/other", false).await;
    assert!(world.propagate(false).await.is_empty());
    world.export_all().await;
    assert!(world.object("other").exists(), "what waits when it ends stays");
}

#[tokio::test]
async fn another_version_than_the_removed_one_stays_and_comes_back() {
    let world = World::propagating().await;
    world.put("file", b"mine");
    world.find("/data/file").await.unwrap();
    world.remove_name("/data/file", false).await;
    world.put("file", b"somebody else's");
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(fs::read(world.object("file")).unwrap(), b"somebody else's");
    assert_eq!(world.deletes().await.waiting, 0);
    world.job(JobKind::Import, "/data").await;
    assert_eq!(world.state("/data/file").await, ObjectState::Clean);
}

#[tokio::test]
async fn a_renamed_file_stands_under_its_new_key_before_the_old_object_goes() {
    let world = World::propagating().await;
    let file = world.write("/data/old", b"content").await;
    world.export_all().await;
    world.move_name("/data/old", "/data/new").await;
    assert_eq!(world.deletes().await.waiting, 0, "the only copy is needed");
    // The export fails: nothing is deleted.
    world.server.faults.lock().unwrap().push_back(Fault::Fail(ErrorKind::Lost));
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Failed);
    assert!(world.object("old").exists() && !world.object("new").exists());
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(fs::read(world.object("new")).unwrap(), b"content");
    assert!(!world.object("old").exists());
    // One that was renamed and removed before its export leaves nothing.
    world.move_name("/data/new", "/data/newer").await;
    world.remove_name("/data/newer", false).await;
    world.export_all().await;
    assert!(!world.object("new").exists() && !world.object("newer").exists());
    assert!(world.server.files.lock().unwrap().contains_key(&file));
}

#[tokio::test]
async fn a_renamed_directory_moves_with_its_marks() {
    let world = World::propagating().await;
    world.make_directory("/data/tmp").await;
    world.write("/data/tmp/a", b"a").await;
    world.export_all().await;
    world.move_name("/data/tmp", "/data/step").await;
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(fs::read(world.object("step/a")).unwrap(), b"a");
    assert!(!world.object("tmp/a").exists());
    world.export_all().await;
    assert!(!world.object("tmp").exists());
    world.remove_name("/data/step/a", false).await;
    world.remove_name("/data/step", true).await;
    world.export_all().await;
    world.export_all().await;
    assert!(!world.object("step").exists());
    assert_eq!(world.deletes().await.waiting, 0);
}

#[tokio::test]
async fn a_checkpoint_renamed_over_the_last_one_replaces_its_object_which_is_never_missing() {
    let world = World::propagating().await;
    world.put("model.pt", b"first");
    world.find("/data/model.pt").await.unwrap();
    world.write("/data/model.tmp", b"second").await;
    world.move_name("/data/model.tmp", "/data/model.pt").await;
    // Its successor cannot go yet: the object stays until it is replaced.
    let model = world.find("/data/model.pt").await.unwrap().id;
    world.server.open_write(model).await;
    let job = world.export_all().await;
    assert_eq!(job.errors, 1, "it is open");
    assert_eq!(fs::read(world.object("model.pt")).unwrap(), b"first");
    assert_eq!(world.deletes().await.waiting, 1);
    world.server.commit(model, 6).await;
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(fs::read(world.object("model.pt")).unwrap(), b"second");
    assert_eq!(world.deletes().await.waiting, 0);
    assert_eq!(world.deletes().await.deleted, 0);
}

#[tokio::test]
async fn a_file_with_another_name_and_one_that_is_open_keep_their_object() {
    let world = World::propagating().await;
    world.put("one", b"linked");
    world.put("two", b"open");
    let data = world.find("/data").await.unwrap().id;
    let one = world.find("/data/one").await.unwrap().id;
    let two = world.find("/data/two").await.unwrap().id;
    let name = FileName::parse(b"again").unwrap();
    let link = command::MakeLink { caller: ROOT, inode: one, parent: data, name };
    world.server.execute(Command::MakeLink(link), false).await.unwrap();
    world.remove_name("/data/one", false).await;
    world.server.open_write(two).await;
    world.remove_name("/data/two", false).await;
    world.server.faults.lock().unwrap().push_back(Fault::Fail(ErrorKind::Lost));
    world.export_all().await;
    assert!(world.object("one").exists(), "its other name was not exported yet");
    assert!(world.object("two").exists(), "somebody has it open");
    world.server.commit(two, 4).await;
    world.server.files.lock().unwrap().insert(one, b"linked".to_vec());
    world.export_all().await;
    assert!(!world.object("two").exists());
    assert_eq!(fs::read(world.object("again")).unwrap(), b"linked");
    assert!(!world.object("one").exists());
}

#[tokio::test]
async fn links_that_export_by_themselves_delete_by_themselves_after_the_quiet_time() {
    let world = World::propagating().await;
    let set = SetAutoExport { path: b"/data".to_vec(), quiet_seconds: Some(60) };
    world.hydration.set_auto_export(&set).await.unwrap();
    world.put("file", b"content");
    world.find("/data/file").await.unwrap();
    world.remove_name("/data/file", false).await;
    world.run_beside(tokio::time::sleep(Duration::from_millis(10))).await;
    assert!(world.object("file").exists(), "not before the time");
    world.server.pass(Duration::from_secs(61));
    let gone = async {
        while world.deletes().await.waiting > 0 {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(gone).await;
    assert!(!world.object("file").exists());
}

#[tokio::test]
async fn what_cannot_be_deleted_is_told_and_tried_again() {
    let mut world = World::propagating().await;
    world.put("file", b"content");
    world.find("/data/file").await.unwrap();
    world.remove_name("/data/file", false).await;
    // The bucket is away.
    let (there, away) = (world.object(""), world.bucket_dir.path().with_extension("away"));
    fs::rename(&there, &away).unwrap();
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Failed);
    let deletes = world.deletes().await;
    assert_eq!((deletes.waiting, deletes.failing), (1, 1));
    assert_eq!(deletes.failures[0].path, b"file");
    fs::rename(&away, &there).unwrap();
    // Nothing of it is only in memory.
    world.restart();
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert!(!world.object("file").exists());
    assert_eq!(world.deletes().await.failing, 0);
}

#[tokio::test]
async fn what_failed_before_it_was_switched_off_is_not_told_when_it_is_on_again() {
    let world = World::propagating().await;
    world.put("file", b"content");
    world.find("/data/file").await.unwrap();
    world.remove_name("/data/file", false).await;
    let (there, away) = (world.object(""), world.bucket_dir.path().with_extension("away"));
    fs::rename(&there, &away).unwrap();
    world.export_all().await;
    fs::rename(&away, &there).unwrap();
    assert_eq!(world.deletes().await.failing, 1);
    assert!(world.propagate(false).await.is_empty());
    let deletes = world.propagate(true).await.remove(0);
    assert_eq!((deletes.waiting, deletes.failing), (0, 0), "{deletes:?}");
}

#[tokio::test]
async fn a_link_whose_bucket_is_away_holds_up_no_deletions_of_others() {
    const FILES: usize = 40;
    let world = World::propagating().await;
    let other = tempfile::tempdir().unwrap();
    let (path, bucket) = (b"/other".to_vec(), bucket_of(other.path()));
    let add = AddLink { path: path.clone(), bucket, mode: LinkMode::ImportExport };
    world.hydration.add_link(&add).await.unwrap();
    let on = SetDeletePropagation { path: path.clone(), on: true };
    world.hydration.set_delete_propagation(&on).await.unwrap();
    for path in [b"/data".to_vec(), path] {
        let set = SetAutoExport { path, quiet_seconds: Some(0) };
        world.hydration.set_auto_export(&set).await.unwrap();
    }
    for number in 0..FILES {
        world.put(&number.to_string(), b"content");
    }
    fs::write(other.path().join("file"), b"content").unwrap();
    let paths = (0..FILES).map(|number| format!("/data/{number}"));
    for path in paths.chain(["/other/file".to_owned()]) {
        world.find(&path).await.unwrap();
        world.remove_name(&path, false).await;
    }
    let away = world.bucket_dir.path().with_extension("away");
    fs::rename(world.bucket_dir.path(), &away).unwrap();
    let gone = async {
        loop {
            let links = world.hydration.list_delete_propagation().await.unwrap();
            if links[0].failing > 0 && links[1].waiting == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(gone).await;
    fs::rename(&away, world.bucket_dir.path()).unwrap();
    assert!(!other.path().join("file").exists());
    let deletes = world.deletes().await;
    assert_eq!(deletes.waiting, FILES as u64);
    assert!(deletes.failing <= 8, "half of a round is tried, and then none: {deletes:?}");
}

#[tokio::test]
async fn a_part_of_a_tree_a_dry_run_and_a_link_that_does_not_export_delete_nothing() {
    let world = World::propagating().await;
    world.put("file", b"content");
    world.make_directory("/data/sub").await;
    world.find("/data/file").await.unwrap();
    world.remove_name("/data/file", false).await;
    let start = |path: &str| StartJob {
        caller: ROOT,
        kind: JobKind::Export,
        path: path.as_bytes().to_vec(),
    };
    let everything = Selection::default();
    let some = Selection { include: vec!["*.pt".to_owned()], ..Selection::default() };
    for (path, selection, dry_run) in [
        ("/data", some, false),
        ("/data", everything.clone(), true),
        ("/data/sub", everything, false),
    ] {
        let (start, options) = (start(path), JobOptions::default());
        let request = StartWithOptions { start, selection, dry_run, options };
        let id = world.hydration.start_with_options(b"", &request).await.unwrap().id;
        world.run_until(|job| job.id == id && job.state.is_final()).await;
        assert!(world.object("file").exists(), "{path} {dry_run}");
    }
    let other = World::new(LinkMode::Import).await;
    let request = SetDeletePropagation { path: b"/data".to_vec(), on: true };
    let refused = other.hydration.set_delete_propagation(&request).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ReadOnly);
}

#[tokio::test]
async fn unfinished_uploads_are_listed_and_old_ones_that_nobody_uses_are_aborted() {
    let world = World::new(LinkMode::ImportExport).await;
    let metadata = millrace_object_source::Metadata::default();
    let stale = world.bucket.create_upload("run/stale", &metadata).await.unwrap();
    let used = world.bucket.create_upload("run/used", &metadata).await.unwrap();
    let record = command::RecordCopy {
        job: millrace_types::JobId(1),
        inode: InodeId(77),
        bucket: bucket_of(world.bucket_dir.path()),
        key: "run/used".to_owned(),
        generation: millrace_types::ContentGeneration(1),
        change_count: millrace_types::ChangeCount(1),
        size: 1,
        part_size: 1,
        upload_id: Some(used.as_str().to_owned()),
    };
    world.server.execute(Command::RecordCopy(Box::new(record)), true).await.unwrap();
    let list = |age| ListUploads { path: b"/data".to_vec(), abort_older_than_seconds: age };
    let told = world.hydration.list_uploads(&list(None)).await.unwrap();
    let keys: Vec<_> =
        told.uploads.iter().map(|one| (one.key.as_str(), one.is_used, one.aborted)).collect();
    assert_eq!(keys, [("run/stale", false, false), ("run/used", true, false)]);
    // The server's clock is far behind the bucket's here: nothing is old.
    let told = world.hydration.list_uploads(&list(Some(0))).await.unwrap();
    assert_eq!((told.total, told.aborted), (2, 0));
    world.server.pass(Duration::from_secs(4_000_000_000));
    let told = world.hydration.list_uploads(&list(Some(3600))).await.unwrap();
    assert_eq!((told.total, told.aborted), (2, 1));
    assert!(world.bucket.list_uploads("run/stale").await.unwrap().is_empty(), "{stale:?}");
    assert_eq!(world.bucket.list_uploads("run/used").await.unwrap(), [used]);
}

#[tokio::test]
async fn what_lies_below_a_directory_that_was_made_anew_is_not_imported_for_a_second_time() {
    let world = World::propagating().await;
    world.put("run/ckpt/x", b"content");
    world.find("/data/run/ckpt/x").await.unwrap();
    world.move_name("/data/run", "/data/old").await;
    world.make_directory("/data/run").await;
    world.make_directory("/data/run/ckpt").await;
    world.job(JobKind::Import, "/data").await;
    let found = world.find("/data/run/ckpt/x").await;
    assert_eq!(found.unwrap_err().kind, ErrorKind::NotFound, "it is the moved file's object");
    assert!(world.find("/data/old/ckpt/x").await.is_ok() && world.object("run/ckpt/x").exists());
}

#[tokio::test]
async fn names_that_go_round_do_not_show_an_object_that_a_renamed_file_may_need() {
    let world = World::propagating().await;
    // Both lie there before anything is looked up: the listing that begins then sees them.
    world.put("a", b"a");
    world.put("c", b"c");
    for name in ["a", "c"] {
        world.find(&format!("/data/{name}")).await.unwrap();
    }
    world.move_name("/data/a", "/data/b").await;
    world.move_name("/data/c", "/data/a").await;
    world.remove_name("/data/a", false).await;
    world.job(JobKind::Import, "/data").await;
    let found = world.find("/data/a").await;
    assert_eq!(found.unwrap_err().kind, ErrorKind::NotFound, "its object is that of b");
    assert!(world.find("/data/b").await.is_ok() && world.object("a").exists());
}

#[tokio::test]
async fn what_hid_an_object_goes_with_it_and_the_same_version_that_is_put_back_is_a_file_again() {
    let world = World::propagating().await;
    world.put("file", b"content");
    let data = list(&world, "/data").await;
    // A file on disk that has another name comes back as the same version.
    let elsewhere = tempfile::tempdir_in(world.bucket_dir.path().parent().unwrap()).unwrap();
    let kept = elsewhere.path().join("kept");
    fs::hard_link(world.object("file"), &kept).unwrap();
    world.remove_name("/data/file", false).await;
    assert!(world.hides(data, "file").await);
    world.export_all().await;
    assert!(!world.object("file").exists() && !world.hides(data, "file").await);
    fs::rename(kept, world.object("file")).unwrap();
    refresh_all(&world).await;
    assert_eq!(world.state("/data/file").await, ObjectState::Clean);
}

#[tokio::test]
async fn a_page_from_before_a_deletion_brings_no_removed_file_back() {
    let world = World::propagating().await;
    for at in 0..=1_000 {
        world.put(&format!("{at:04}"), b"x");
    }
    let data = list(&world, "/data").await;
    world.server.troubles.pressed.send_replace(true);
    let importer = Arc::clone(&world.hydration.importer);
    let refresh = tokio::spawn(async move { importer.refresh(data, |_| ()).await });
    // It has its only page, and waits with the last name of that.
    let held_up = world.server.troubles.held_up.notified();
    timeout(LIMIT, held_up).await.expect("it gives way behind the first thousand names");
    world.remove_name("/data/1000", false).await;
    world.export_all().await;
    assert!(!world.object("1000").exists() && world.hides(data, "1000").await);
    world.server.troubles.pressed.send_replace(false);
    refresh.await.unwrap().unwrap();
    assert_eq!(world.find("/data/1000").await.unwrap_err().kind, ErrorKind::NotFound);
}
