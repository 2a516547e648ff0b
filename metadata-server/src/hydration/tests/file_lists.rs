//! Jobs over lists of files, and what is told of them by directory and in requests.

use std::{
    fs,
    sync::atomic::Ordering,
    time::{Duration, SystemTime},
};

use millrace_protocol::{
    admin::{Job, JobKind, JobState, StartJob},
    cluster::LinkMode,
    file_list::{AppendFiles, FileListId},
    job_options::{JobOptions, StartWithOptions},
    selection::{RetryJob, Selection},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure};

use super::server::{ROOT, World};

impl World {
    /// Sends a list in pages of one path.
    pub(super) async fn list_of(&self, paths: &[&str]) -> FileListId {
        let mut request = AppendFiles { caller: ROOT, list: None, offset: 0, paths: Vec::new() };
        let mut list = self.hydration.append_files(request.clone()).await.unwrap().list;
        for path in paths {
            request.list = Some(list);
            request.paths = [path.as_bytes(), b"\0"].concat();
            list = self.hydration.append_files(request.clone()).await.unwrap().list;
            request.offset += request.paths.len() as u64;
        }
        list
    }

    async fn listed(&self, kind: JobKind, paths: &[&str]) -> Job {
        let files = Some(self.list_of(paths).await);
        let options = JobOptions { files, ..JobOptions::default() };
        self.with_options(kind, options).await.unwrap()
    }

    async fn with_options(&self, kind: JobKind, options: JobOptions) -> Result<Job, Failure> {
        let start = StartJob { caller: ROOT, kind, path: b"/data".to_vec() };
        let selection = Selection::default();
        let request = StartWithOptions { start, selection, dry_run: false, options };
        let id = self.hydration.start_with_options(b"", &request).await?.id;
        Ok(self.run_until(|job| job.id == id && job.state.is_final()).await)
    }

    fn hydrated(&self) -> usize {
        self.server.items_of("hydrate").len()
    }
}

/// Ten files in each of two directories, and one in none.
async fn world() -> World {
    let world = World::new(LinkMode::ImportExport).await;
    for name in 0..10 {
        world.put(&format!("a/{name}"), b"12345");
        world.put(&format!("b/c/{name}"), b"1234567");
    }
    world.put("top", b"123");
    world
}

#[tokio::test]
async fn a_job_works_on_what_its_list_names_and_names_what_is_not_there() {
    let world = world().await;
    let paths = ["a/3", "./b//c/", "top", "b/c/4", "a/3", "a/missing", "/etc/passwd", "a/../top"];
    let job = world.listed(JobKind::Hydrate, &paths).await;
    // Each file once, however often it is named.
    assert_eq!((job.state, job.files_done, job.files_total), (JobState::Failed, 12, 15));
    assert_eq!((job.bytes_done, world.hydrated()), (5 + 70 + 3, 12));
    let failed: Vec<_> = job
        .failures
        .iter()
        .map(|one| (String::from_utf8(one.path.clone()).unwrap(), one.failure.kind))
        .collect();
    let expected = [
        ("/data/a/missing", ErrorKind::NotFound),
        ("/etc/passwd", ErrorKind::InvalidArgument),
        ("/data/a/../top", ErrorKind::InvalidArgument),
    ];
    assert_eq!(failed, expected.map(|(path, kind)| (path.to_owned(), kind)));
    // All of the tree, and nothing at all.
    assert_eq!(world.listed(JobKind::Hydrate, &["."]).await.files_done, 21);
    let nothing = world.listed(JobKind::Hydrate, &[]).await;
    assert_eq!((nothing.state, nothing.files_total), (JobState::Succeeded, 0));
}

#[tokio::test]
async fn exports_and_releases_take_lists_too_and_imports_do_not() {
    let world = world().await;
    world.job(JobKind::Import, "/data").await;
    for name in ["a/new", "a/other", "b/new"] {
        world.write(&format!("/data/{name}"), b"new").await;
    }
    let job = world.listed(JobKind::Export, &["a/new", "b"]).await;
    assert_eq!((job.state, job.bytes_done), (JobState::Succeeded, 6), "{:?}", job.failures);
    assert!(world.object("a/new").exists() && world.object("b/new").exists());
    assert!(!world.object("a/other").exists(), "nobody named it");
    let job = world.listed(JobKind::Release, &["a"]).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 12));
    assert_eq!(world.server.items_of("release").len(), 11, "what was made here and not sent stays");

    let files = Some(world.list_of(&["a"]).await);
    let options = JobOptions { files, ..JobOptions::default() };
    let refused = world.with_options(JobKind::Import, options).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    let unknown = JobOptions { files: Some(FileListId(1)), ..JobOptions::default() };
    let refused = world.with_options(JobKind::Hydrate, unknown).await.unwrap_err();
    assert!(refused.kind == ErrorKind::NotFound && refused.message.contains("list"), "{refused}");
}

#[tokio::test]
async fn a_list_outlives_the_server_for_its_job_and_for_starting_it_once_more() {
    let mut world = world().await;
    let job = world.listed(JobKind::Hydrate, &["a/1", "a/gone"]).await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1));
    // Nobody may start a job over the list of another.
    let stranger = Caller { uid: 1000, ..ROOT };
    let unused = world.list_of(&["b"]).await;
    let append =
        AppendFiles { caller: stranger, list: Some(unused), offset: 2, paths: b"a\0".to_vec() };
    let refused = world.hydration.append_files(append).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotFound);

    world.restart();
    let long_ago = SystemTime::now() - Duration::from_secs(7200);
    for entry in fs::read_dir(world.server.reports_dir()).unwrap() {
        let file = fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    world.put("a/gone", b"it is back");
    world.job(JobKind::Import, "/data/a").await;
    let again = RetryJob { caller: ROOT, id: job.id };
    let again = world.hydration.retry_job(&again).await.unwrap().id;
    let job = world.run_until(|job| job.id == again && job.state.is_final()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 2), "{:?}", job.failures);
    // Only the one that no job names goes.
    world.hydration.jobs.prune_lists().await.unwrap();
    let lists = fs::read_dir(world.server.reports_dir()).unwrap().count();
    assert_eq!(lists, 1);
}

#[tokio::test]
async fn a_list_leaves_the_disk_of_the_metadata_what_reports_leave_it() {
    let world = world().await;
    let page = AppendFiles { caller: ROOT, list: None, offset: 0, paths: b"a\0".to_vec() };
    world.server.troubles.reports_keep_free.store(u64::MAX, Ordering::Relaxed);
    let refused = world.hydration.append_files(page).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoSpace);
    assert!(refused.message.contains("too little room"), "{refused}");
    assert_eq!(fs::read_dir(world.server.reports_dir()).unwrap().count(), 0);
    world.server.troubles.reports_keep_free.store(0, Ordering::Relaxed);
    assert_eq!(world.listed(JobKind::Hydrate, &["a/1"]).await.files_done, 1);
}

#[tokio::test]
async fn a_file_of_several_names_is_done_once() {
    let world = world().await;
    let file = world.write("/data/a/new", b"new").await;
    world.hard_link(file, "/data/b", "again").await;
    let job = world.listed(JobKind::Export, &["b/again", "a/new"]).await;
    assert_eq!((job.state, job.files_done, job.bytes_done), (JobState::Succeeded, 1, 3));
    assert_eq!(world.job(JobKind::Hydrate, "/data").await.files_total, 22);
}

#[tokio::test]
async fn a_job_tells_what_it_asked_and_how_far_each_directory_is() {
    let mut world = world().await;
    let before = world.bucket.counters().by_class();
    let imported = world.job(JobKind::Import, "/data").await;
    let after = world.bucket.counters().by_class();
    let told = world.hydration.show_job_detail(imported.id).await.unwrap();
    assert_eq!(told.targets, 2);
    let bucket = format!("file://{}/", world.bucket_dir.path().display());
    assert_eq!(told.source, Some(bucket));
    let told = told.detail;
    assert!(told.requests.list >= 4, "{told:?}");
    assert_eq!(told.requests.list, after[0] - before[0], "nobody else asked");

    let job = world.listed(JobKind::Hydrate, &["a", "b/c/1", "top", "b/none"]).await;
    // It is recorded: a restart loses nothing of it.
    world.restart();
    let told = world.hydration.show_job_detail(job.id).await.unwrap().detail;
    assert_eq!(told.requests.get, 12, "one for each file, by the targets");
    let rows: Vec<_> = told
        .directories
        .iter()
        .map(|row| {
            let name = String::from_utf8(row.name.clone()).unwrap();
            (name, row.files_done, row.files_total, row.bytes_done, row.errors)
        })
        .collect();
    let expected = [("a", 10, 10, 50, 0), ("b", 1, 2, 7, 1), ("", 1, 1, 3, 0)];
    assert_eq!(rows, expected.map(|(name, a, b, c, d)| (name.to_owned(), a, b, c, d)));

    // Of a whole tree the same, without a list.
    let job = world.job(JobKind::Hydrate, "/data").await;
    let told = world.hydration.show_job_detail(job.id).await.unwrap().detail;
    let mut rows: Vec<_> = told
        .directories
        .iter()
        .map(|row| (String::from_utf8(row.name.clone()).unwrap(), row.files_done, row.bytes_done))
        .collect();
    rows.sort();
    let expected = [("", 1, 3), ("a", 10, 50), ("b", 10, 70)];
    assert_eq!(rows, expected.map(|(name, files, bytes)| (name.to_owned(), files, bytes)));
}
