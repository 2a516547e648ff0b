//! Symbolic links and the objects that hold their targets.

use std::fs;

use millrace_object_source::{
    Condition, EXPORT_ID_KEY, Location, Metadata, PosixAttributes, RequestClass, StoredSymlink,
};
use millrace_protocol::{
    admin::{AttributeSource, JobKind, JobState, SetLinkOptions},
    cluster::LinkMode,
    metadata::{FileKind, RenameMode},
};
use millrace_types::{ErrorKind, FileName};

use super::{
    refresh::symlink,
    server::{ROOT, World},
};
use crate::{
    command::{self, Command},
    hydration::Environment,
    namespace::Body,
};

const GOOGLE_MARK: &str = "goog-reserved-file-is-symlink";

async fn rename(world: &World, from: &str, to: &str) {
    let data = world.find("/data").await.unwrap().id;
    let rename = command::Rename {
        caller: ROOT,
        source_parent: data,
        source_name: FileName::parse(from.as_bytes()).unwrap(),
        target_parent: data,
        target_name: FileName::parse(to.as_bytes()).unwrap(),
        mode: RenameMode::Replace,
        readers: Vec::new(),
    };
    world.server.execute(Command::Rename(rename), false).await.unwrap();
}

async fn remove(world: &World, name: &str) {
    let remove = command::Remove {
        caller: ROOT,
        parent: world.find("/data").await.unwrap().id,
        name: FileName::parse(name.as_bytes()).unwrap(),
        directory: false,
        readers: Vec::new(),
    };
    world.server.execute(Command::Remove(remove), false).await.unwrap();
}

#[tokio::test]
async fn a_link_that_leads_elsewhere_by_now_takes_the_place_of_its_object() {
    let world = World::new(LinkMode::ImportExport).await;
    symlink(&world, "/data/latest", "step-100").await;
    world.export("/data").await;
    world.export("/data").await;
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"step-100");
    for (target, is_renamed) in [("step-200", true), ("step-3000", false)] {
        match is_renamed {
            true => {
                symlink(&world, "/data/latest.tmp", target).await;
                rename(&world, "latest.tmp", "latest").await;
            }
            false => {
                remove(&world, "latest").await;
                symlink(&world, "/data/latest", target).await;
            }
        }
        world.export("/data").await;
        assert_eq!(fs::read(world.object("latest")).unwrap(), target.as_bytes());
        let head = world.bucket.head("latest").await.unwrap();
        assert_eq!(PosixAttributes::from_metadata(&head.metadata).mode, Some(0o120_777));
        assert_eq!(head.metadata.value(GOOGLE_MARK), Some("true"));
        assert_eq!(head.metadata.value("gcsfuse_symlink_target"), None, "it is not GCS");
        assert!(head.metadata.value(EXPORT_ID_KEY).is_some());
    }
}

/// As `gcloud storage cp --preserve-symlinks`, gcsfuse before it took to that, and since then.
async fn put_links_of_others(world: &World) {
    let google = Location::Google { bucket: "bucket".to_owned(), prefix: String::new() };
    let marked = || Metadata::new([(GOOGLE_MARK.to_owned(), "true".to_owned())]).unwrap();
    let with_target = |metadata: Metadata| metadata.with_symlink_target(b"step-100", &google);
    for (key, body, metadata) in [
        ("gcloud", &b"step-100"[..], marked()),
        ("older-gcsfuse", &b""[..], with_target(Metadata::default())),
        ("newer-gcsfuse", &b"step-100"[..], with_target(marked())),
        // What says that it is one, and cannot be.
        ("empty", &b""[..], marked()),
        ("large", &[b'x'; 4_096][..], marked()),
    ] {
        let body = vec![body.to_vec().into()];
        world.bucket.put_small(key, body, &metadata, &Condition::Absent).await.unwrap();
    }
}

#[tokio::test]
async fn links_that_googles_tools_made_are_links_and_an_export_leaves_them_alone() {
    let world = World::new(LinkMode::ImportExport).await;
    put_links_of_others(&world).await;
    let gets = world.bucket.counters().requests(RequestClass::Get);
    world.job(JobKind::Import, "/data").await;
    let asked = world.bucket.counters().requests(RequestClass::Get) - gets;
    assert_eq!(asked, 2, "of older gcsfuse HEAD has told the target");
    for name in ["gcloud", "older-gcsfuse", "newer-gcsfuse"] {
        let link = world.find(&format!("/data/{name}")).await.unwrap();
        assert_eq!((link.kind, link.mode, link.size), (FileKind::Symlink, 0o777, 8), "{name}");
        assert_eq!(link.body, Body::Symlink(b"step-100".to_vec()), "{name}");
    }
    for (name, size) in [("empty", 0), ("large", 4_096)] {
        let file = world.find(&format!("/data/{name}")).await.unwrap();
        assert_eq!((file.kind, file.mode, file.size), (FileKind::Regular, 0o644, size), "{name}");
    }
    world.export("/data").await;
    let head = world.bucket.head("older-gcsfuse").await.unwrap();
    assert_eq!(head.symlink(), Some(StoredSymlink::Target("step-100")));

    // A link that leads elsewhere by now is no longer theirs, and their object stays.
    remove(&world, "older-gcsfuse").await;
    symlink(&world, "/data/older-gcsfuse", "step-200").await;
    let job = world.job(JobKind::Export, "/data/older-gcsfuse").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict, "{:?}", job.failures);
    assert_eq!(world.bucket.head("older-gcsfuse").await.unwrap(), head);
}

#[tokio::test]
async fn the_object_of_a_link_stays_while_a_file_that_was_moved_away_still_needs_it() {
    let world = World::new(LinkMode::ImportExport).await;
    symlink(&world, "/data/latest", "step-100").await;
    world.export("/data").await;
    remove(&world, "latest").await;
    // A listing that does not ask for each object takes it for a file.
    let path = b"/data".to_vec();
    let attributes = Some(AttributeSource::Listing);
    let options = SetLinkOptions { path, refresh_seconds: None, attributes };
    world.hydration.set_link_options(&options).await.unwrap();
    world.job(JobKind::Import, "/data").await;
    rename(&world, "latest", "note").await;
    let note = world.find("/data/note").await.unwrap();
    assert_eq!((note.kind, note.size), (FileKind::Regular, 8));
    symlink(&world, "/data/latest", "step-200").await;
    let job = world.job(JobKind::Export, "/data/latest").await;
    let failure = &job.failures[0].failure;
    assert_eq!(failure.kind, ErrorKind::Conflict);
    assert!(failure.message.contains("/data/note"), "{failure}");
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"step-100");
    world.server.present.lock().unwrap().insert(note.id, 8);
    world.export("/data/latest").await;
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"step-200");
}

#[tokio::test]
async fn a_link_is_put_over_nothing_but_an_own_link() {
    let world = World::new(LinkMode::ImportExport).await;
    // Of a file that has another name by now, and may need it.
    world.write("/data/model", b"weights").await;
    world.export("/data").await;
    rename(&world, "model", "old").await;
    symlink(&world, "/data/model", "old").await;
    symlink(&world, "/data/theirs", "elsewhere").await;
    world.put("theirs", b"of somebody else");
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 2), "{:?}", job.failures);
    assert!(job.failures.iter().all(|one| one.failure.kind == ErrorKind::Conflict));
    assert_eq!(fs::read(world.object("model")).unwrap(), b"weights");
    assert_eq!(fs::read(world.object("theirs")).unwrap(), b"of somebody else");
    // What was exported before a backup was put back may be newer than what is here.
    symlink(&world, "/data/latest", "step-100").await;
    world.export("/data/latest").await;
    let restored = Command::Restored("a backup of yesterday".to_owned());
    world.server.execute(restored, true).await.unwrap();
    remove(&world, "latest").await;
    symlink(&world, "/data/latest", "step-200").await;
    let job = world.job(JobKind::Export, "/data/latest").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict, "{:?}", job.failures);
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"step-100");
}
