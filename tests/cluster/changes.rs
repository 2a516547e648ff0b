//! Objects that other programs overwrite and delete in the bucket: what readers, writers and the
//! next open see, without any command by hand; and the decision when both sides changed.

use std::{
    fs,
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::wait_for,
    proxy::{Proxy, Weather},
};
use rustix::io::Errno;

const PAGE: usize = 4096;
const ESTALE: i32 = Errno::STALE.raw_os_error();

/// Bytes of which every 8 say where they are and of which version, so that a mix shows.
fn version(number: u32, len: usize) -> Vec<u8> {
    let words = (0..u32::try_from(len.div_ceil(8)).expect("a small test"))
        .flat_map(|at| [at.to_le_bytes(), number.to_le_bytes()].concat());
    words.take(len).collect()
}

fn state(cluster: &Cluster, path: &str) -> Result<String> {
    let told = cluster.json(&["state", path])?;
    told["state"].as_str().map(str::to_owned).with_context(|| told.to_string())
}

fn linked(bucket: &Bucket, options: &[&str]) -> Result<Cluster> {
    let cluster = Cluster::start(Wish::default().with_bucket(bucket))?;
    let add = [&["link", "add", "s3://data/set", "mr:/set"], options].concat();
    cluster.cli(&add)?.ok()?;
    Ok(cluster)
}

fn delete(bucket: &Bucket, key: &str) -> Result<()> {
    bucket.script("client.delete_object(Bucket='data', Key=sys.argv[2])", &[key]).map(drop)
}

/// Looks until `wanted` holds.
fn eventually(what: &str, mut wanted: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(what, || match wanted() {
        Ok(true) => Some(Ok(())),
        Ok(false) => None,
        Err(error) => Some(Err(error)),
    })?
}

/// What reading to the end gives; fails if any byte is of another version than `number`.
fn read_all(file: &mut fs::File, number: u32, from: usize) -> std::io::Result<usize> {
    let mut all = Vec::new();
    let result = file.read_to_end(&mut all);
    let expected = &version(number, from + all.len())[from..];
    let wrong: Vec<_> = (0..all.len()).filter(|&at| all[at] != expected[at]).collect();
    if let (Some(first), Some(last)) = (wrong.first(), wrong.last()) {
        let shown = &all[*first..all.len().min(first + 16)];
        panic!(
            "bytes of another version: {} of {} from {from} on, at {first} to {last}: {shown:?}",
            wrong.len(),
            all.len()
        );
    }
    result
}

#[test]
fn a_reader_of_an_overwritten_object_gets_estale_and_the_next_open_the_new_content() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.put("set/file", &version(1, 24_000_000))?;
    let cluster = linked(&bucket, &[])?;
    let path = cluster.mount().join("set/file");
    // Opened, not read: between the two another client overwrites the object.
    let mut early = fs::File::open(&path)?;
    let mut middle = fs::File::open(&path)?;
    let mut piece = vec![0; 100_000];
    middle.read_exact(&mut piece)?;
    ensure!(piece == version(1, 100_000), "the first bytes");
    bucket.put("set/file", &version(2, 17_000_000))?;

    let failed = read_all(&mut early, 1, 0).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(ESTALE), "{failed}");
    // The very next open, while handles of the old version are still open.
    let now = fs::read(&path)?;
    ensure!(now == version(2, 17_000_000), "the new content, whole");
    // Old bytes may come from what was fetched before; then ESTALE, never a byte of the new one.
    let failed = read_all(&mut middle, 1, 100_000).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(ESTALE), "{failed}");
    let failed = early.read_at(&mut piece, 0).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(ESTALE), "{failed}");
    drop((early, middle));
    ensure!(fs::read(&path)? == version(2, 17_000_000), "and again");
    // It is stored a little after its reader has the bytes.
    eventually(
        "what was read to be stored",
        || Ok(state(&cluster, "mr:/set/file")? == "hydrated"),
    )?;

    // After the close, of a file that was never read on this mount.
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    cluster.cli(&["release", "mr:/set", "--wait"])?.ok()?;
    bucket.put("set/file", &version(3, 5_000_000))?;
    let path = second.join("set/file");
    let failed = fs::read(&path).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(ESTALE), "{failed}");
    ensure!(fs::read(&path)? == version(3, 5_000_000), "the new content on the other mount");
    ensure!(fs::read(cluster.mount().join("set/file"))? == version(3, 5_000_000), "and on this");
    Ok(())
}

/// Reads a page, which is as in `whole`, or tells that the content has ended.
fn has_ended(file: &fs::File, whole: &[u8], page: usize) -> Result<bool> {
    let (at, mut bytes) = (page * PAGE, [0; PAGE]);
    match file.read_at(&mut bytes, at as u64) {
        Ok(len) => {
            let same = bytes[..len] == whole[at..at + len];
            ensure!(len == PAGE && same, "{len} bytes at {at}, as they were: {same}");
            Ok(false)
        }
        Err(failed) => {
            ensure!(failed.raw_os_error() == Some(ESTALE), "at {at}: {failed}");
            Ok(true)
        }
    }
}

#[test]
fn who_has_a_file_open_from_before_it_was_moved_and_exported_gets_nothing_of_its_old_object()
-> Result<()> {
    const LEN: usize = 20_000_000;
    let bucket = Bucket::start()?;
    bucket.put("set/old", &version(1, LEN))?;
    let cluster = linked(&bucket, &["--mode", "import-export"])?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let mut reader = fs::File::open(second.join("set/old"))?;
    reader.read_exact_at(&mut [0; PAGE], 0)?;

    let set = cluster.mount().join("set");
    fs::rename(set.join("old"), set.join("new"))?;
    let writer = fs::File::options().write(true).open(set.join("new"))?;
    writer.write_all_at(&version(2, LEN), 0)?;
    drop(writer);
    cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;
    cluster.cli(&["release", "mr:/set", "--wait"])?.ok()?;
    assert_eq!(state(&cluster, "mr:/set/new")?, "released");
    ensure!(bucket.get("set/old")? == version(1, LEN), "it stays in the bucket");

    // Behind what the mount and its kernel have of it.
    rustix::fs::fadvise(&reader, 0, None, rustix::fs::Advice::DontNeed)?;
    reader.seek(SeekFrom::Start(PAGE as u64))?;
    let end = read_all(&mut reader, 2, PAGE)?;
    ensure!(end == LEN - PAGE, "{end} bytes");
    for mount in [cluster.mount(), second] {
        ensure!(fs::read(mount.join("set/new"))? == version(2, LEN), "{}", mount.display());
    }
    Ok(())
}

#[test]
fn a_handle_from_before_a_deletion_ends_with_it_and_shows_nothing_of_what_came_after() -> Result<()>
{
    const LEN: usize = 9_000_000;
    let bucket = Bucket::start()?;
    for name in ["gone", "again"] {
        bucket.put(&format!("set/{name}"), &version(1, LEN))?;
    }
    let cluster = linked(&bucket, &[])?;
    let set = cluster.mount().join("set");
    // All of both is here, and nothing in the page cache but a beginning.
    cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
    let open = |name: &str| fs::File::open(set.join(name));
    let mut handles = Vec::new();
    for name in ["gone", "again"] {
        let mut begun = open(name)?;
        begun.read_exact(&mut [0; 1000])?;
        handles.push((name, begun));
        handles.push((name, open(name)?));
    }
    delete(&bucket, "set/gone")?;
    delete(&bucket, "set/again")?;
    bucket.put("set/again", &version(2, LEN))?;
    cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;

    // Until the targets have freed what was fetched it may be read, and after that what the mount
    // has read ahead, once: so all of it is asked for, over and over.
    let old = version(1, LEN);
    for (name, handle) in &handles {
        let mut pages = (0..LEN / PAGE).cycle();
        eventually(&format!("the end of {name}"), || {
            rustix::fs::fadvise(handle, 0, None, rustix::fs::Advice::DontNeed)?;
            for page in pages.by_ref().take(100) {
                if has_ended(handle, &old, page).with_context(|| name.to_owned())? {
                    return Ok(true);
                }
            }
            Ok(false)
        })?;
    }
    let gone = open("gone").unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound, "{gone}");
    ensure!(fs::read(set.join("again"))? == version(2, LEN), "the object that is there now");
    Ok(())
}

#[test]
fn the_end_of_a_shorter_object_is_never_taken_for_that_of_the_one_that_is_open() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.put("set/file", &version(1, 24_000_000))?;
    bucket.put("set/looked-at", &version(1, 9_000_000))?;
    let cluster = linked(&bucket, &["--refresh", "1"])?;
    let path = cluster.mount().join("set/file");
    let mut piece = vec![0; 100_000];
    let stale = |result: std::io::Result<u64>, what: &str| {
        let failed = result.expect_err(what);
        assert_eq!(failed.raw_os_error(), Some(ESTALE), "{what}: {failed}");
    };
    // One that has read, in the page cache and past it, and one that has not.
    let mut reader = fs::File::open(&path)?;
    reader.read_exact(&mut piece)?;
    let fresh = fs::File::open(&path)?;
    let direct = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let direct: fs::File = rustix::fs::open(&path, direct, rustix::fs::Mode::empty())?.into();
    let other = fs::File::open(cluster.mount().join("set/looked-at"))?;
    bucket.put("set/file", &version(2, 3_000_000))?;
    bucket.put("set/looked-at", &version(2, 50))?;
    std::thread::sleep(Duration::from_millis(1_100));
    // Another program opens the new version; of the other file, somebody only looks at the size.
    ensure!(fs::read(&path)? == version(2, 3_000_000), "the new content");
    ensure!(fs::metadata(cluster.mount().join("set/looked-at"))?.len() == 50, "the new size");

    for (file, name) in [(&reader, "reader"), (&fresh, "fresh"), (&direct, "direct")] {
        for offset in [2_999_808, 3_000_320, 12_000_256, 23_999_488, 30_000_128] {
            let read = file.read_at(&mut piece[..4096], offset).map(|len| len as u64);
            stale(read, &format!("{name} at {offset}"));
        }
    }
    // A program that goes on where it was, to the end; and one that asks where the end is.
    reader.seek(SeekFrom::Start(20_000_000))?;
    stale(read_all(&mut reader, 1, 20_000_000).map(|len| len as u64), "going on");
    stale(reader.seek(SeekFrom::End(0)), "the end");
    for offset in [50, 4_096, 8_999_999] {
        stale(other.read_at(&mut piece, offset).map(|len| len as u64), "after a look");
    }
    ensure!(reader.metadata()?.len() == 3_000_000, "fstat shows the new version");
    // A new open is not concerned, nor is the look at the path.
    ensure!(fs::read(&path)? == version(2, 3_000_000), "and again");
    ensure!(fs::metadata(&path)?.len() == 3_000_000, "the new size");
    Ok(())
}

#[test]
fn a_change_is_followed_over_a_crash_of_the_metadata_server() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.put("set/file", &version(1, 12_000_000))?;
    let cluster = linked(&bucket, &[])?;
    let path = cluster.mount().join("set/file");
    let mut file = fs::File::open(&path)?;
    bucket.put("set/file", &version(2, 3_000_000))?;
    cluster.daemon("metadata")?.kill()?;
    // The kernel asks for attributes before it reads, so that the read itself may wait.
    let reader = std::thread::spawn(move || read_all(&mut file, 1, 0));
    cluster.up()?;
    let failed = reader.join().expect("the reader ends").unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(ESTALE), "{failed}");
    ensure!(fs::read(&path)? == version(2, 3_000_000), "the new content");
    Ok(())
}

#[test]
fn a_deleted_object_takes_its_clean_file_along_and_changed_files_stay() -> Result<()> {
    let bucket = Bucket::start()?;
    for name in ["clean", "mine", "other"] {
        bucket.put(&format!("set/{name}"), &version(1, 300_000))?;
    }
    let cluster = linked(&bucket, &["--mode", "import-export"])?;
    let root = cluster.mount().join("set");
    assert_eq!(fs::read_dir(&root)?.count(), 3);
    // A piece of 64 KiB at most is here; the rest of the file still is the bucket's.
    let mut mine = fs::OpenOptions::new().write(true).open(root.join("mine"))?;
    mine.write_all(&version(9, 65_536))?;
    mine.sync_all()?;
    drop(mine);
    delete(&bucket, "set/clean")?;
    delete(&bucket, "set/mine")?;

    let failed = fs::read(root.join("clean")).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(ESTALE), "{failed}");
    let failed = fs::read(root.join("clean")).unwrap_err();
    assert_eq!(failed.kind(), std::io::ErrorKind::NotFound, "{failed}");
    drop(fs::read(root.join("mine")).unwrap_err());
    eventually("the conflict", || Ok(state(&cluster, "mr:/set/mine")? == "conflict"))?;
    let status = cluster.cli(&["status"])?;
    assert!(status.stdout.contains("/set/mine"), "{status}");
    let mut names: Vec<_> = fs::read_dir(&root)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, std::io::Error>>()?;
    names.sort();
    assert_eq!(names, ["mine", "other"]);

    // What was never fetched exists nowhere any more: it is not made up.
    let refused = cluster.cli(&["resolve", "mr:/set/mine", "--keep", "local"])?;
    assert!(!refused.succeeded() && refused.stderr.contains("never fetched"), "{refused}");
    // The decision for the bucket is the file's end.
    cluster.cli(&["resolve", "mr:/set/mine", "--keep", "bucket"])?.ok()?;
    assert!(!root.join("mine").exists());
    cluster.cli(&["status"])?.ok()?;
    Ok(())
}

#[test]
fn a_conflict_is_resolved_on_a_path_inside_a_mount_either_way() -> Result<()> {
    let bucket = Bucket::start()?;
    for name in ["keep", "drop"] {
        bucket.put(&format!("set/{name}"), &version(1, 200_000))?;
    }
    let cluster = linked(&bucket, &["--mode", "import-export"])?;
    let root = cluster.mount().join("set");
    for name in ["keep", "drop"] {
        fs::write(root.join(name), version(2, 150_000))?;
        bucket.put(&format!("set/{name}"), &version(3, 120_000))?;
    }
    let export = cluster.cli(&["export", "mr:/set", "--wait"])?;
    assert!(!export.succeeded(), "{export}");
    for name in ["keep", "drop"] {
        assert_eq!(state(&cluster, &format!("mr:/set/{name}"))?, "conflict");
        ensure!(bucket.get(&format!("set/{name}"))? == version(3, 120_000), "not overwritten");
    }
    let resolve = |path: &Path, keep: &str| {
        let path = path.to_str().context("text")?;
        cluster.json(&["resolve", path, "--keep", keep])
    };
    let kept = resolve(&root.join("keep"), "local")?;
    assert_eq!(
        (kept["keep"].as_str(), kept["size_bytes"].as_u64()),
        (Some("local"), Some(150_000))
    );
    assert_eq!(kept["origin"]["url"].as_str(), Some("s3://data/set/keep"));
    resolve(&root.join("drop"), "bucket")?;
    ensure!(fs::read(root.join("drop"))? == version(3, 120_000), "the bucket's version");
    ensure!(fs::read(root.join("keep"))? == version(2, 150_000), "the local version");
    cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;
    ensure!(bucket.get("set/keep")? == version(2, 150_000), "the local version is exported");
    ensure!(bucket.get("set/drop")? == version(3, 120_000), "the other is the bucket's");
    let calm = cluster.cli(&["resolve", "mr:/set/drop", "--keep", "bucket"])?;
    assert!(calm.stderr.contains("not in conflict"), "{calm}");
    Ok(())
}

#[test]
fn a_refreshed_directory_follows_new_changed_and_deleted_keys_by_itself() -> Result<()> {
    let bucket = Bucket::start()?;
    for name in ["changed", "deleted", "same", "sub/deep/file"] {
        bucket.put(&format!("set/{name}"), &version(1, 300_000))?;
    }
    let cluster = linked(&bucket, &["--refresh", "1"])?;
    let root = cluster.mount().join("set");
    let listing = cluster.json(&["link", "list"])?;
    assert_eq!(listing[0]["refresh_seconds"].as_u64(), Some(1), "{listing}");
    // Read to the end and closed: nobody would ask the bucket for these bytes again.
    for name in ["changed", "deleted", "same", "sub/deep/file"] {
        ensure!(fs::read(root.join(name))? == version(1, 300_000), "{name}");
    }
    bucket.put("set/changed", &version(2, 200_000))?;
    bucket.put("set/new", &version(1, 100))?;
    delete(&bucket, "set/deleted")?;
    delete(&bucket, "set/sub/deep/file")?;
    std::thread::sleep(Duration::from_millis(1_100));
    // The first look at each name after its age, by a lookup or by a listing.
    ensure!(fs::read(root.join("changed"))? == version(2, 200_000), "the new content");
    ensure!(fs::read(root.join("new"))? == version(1, 100), "the new name");
    let gone = fs::read(root.join("deleted")).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound, "{gone}");
    let gone = root.join("sub/deep/file");
    eventually("a file in a directory that is listed behind", || Ok(!gone.exists()))?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&root)? {
        names.push(entry?.file_name());
    }
    names.sort();
    // This S3 server goes on listing the prefix of a folder that once held something.
    names.retain(|name| name != "sub");
    assert_eq!(names, ["changed", "new", "same"]);

    // Only on command: nothing is asked however long it is looked at; then the command is enough.
    cluster.cli(&["link", "set", "mr:/set", "--refresh", "0"])?.ok()?;
    bucket.put("set/later", b"later")?;
    std::thread::sleep(Duration::from_millis(1_100));
    // What was asked for before the command is answered by then.
    let mut before = bucket.requests()?;
    eventually("the end of what was begun before", || {
        std::thread::sleep(Duration::from_millis(500));
        let now = bucket.requests()?;
        Ok(std::mem::replace(&mut before, now.clone()) == now)
    })?;
    assert!(!root.join("later").exists());
    assert_eq!(bucket.requests()?, before);
    cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
    assert_eq!(fs::read(root.join("later"))?, b"later");
    Ok(())
}

#[test]
fn links_modes_and_empty_directories_go_to_the_bucket_and_come_back_by_a_listing() -> Result<()> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    let bucket = Bucket::start()?;
    let cluster = linked(&bucket, &["--mode", "import-export"])?;
    let root = cluster.mount().join("set");
    fs::create_dir_all(root.join("hub/empty"))?;
    fs::create_dir(root.join("hub/private"))?;
    fs::set_permissions(root.join("hub/private"), fs::Permissions::from_mode(0o700))?;
    fs::set_permissions(root.join("hub/empty"), fs::Permissions::from_mode(0o750))?;
    fs::write(root.join("hub/private/model"), version(1, 100_000))?;
    fs::set_permissions(root.join("hub/private/model"), fs::Permissions::from_mode(0o600))?;
    symlink("private/model", root.join("hub/latest"))?;
    let modified = fs::metadata(root.join("hub/private/model"))?.mtime();
    cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;
    cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;

    let before = bucket.requests()?;
    let add = ["link", "add", "s3://data/set", "mr:/copy", "--attributes", "objects"];
    cluster.cli(&add)?.ok()?;
    let copy = cluster.mount().join("copy");
    // Listed, not looked up: the import lists every directory.
    cluster.cli(&["import", "mr:/copy", "--wait"])?.ok()?;
    let asked = bucket.requests()?;
    let kinds: Vec<_> = ["GET", "HEAD", "LIST", "PUT"]
        .into_iter()
        .map(|kind| asked.get(kind).unwrap_or(&0) - before.get(kind).unwrap_or(&0))
        .collect();
    // A HEAD for each of hub, empty, latest, private and model, and the link's target; the rest is
    // the check of the new link.
    assert!(kinds[0] + kinds[1] <= 8, "GET, HEAD, LIST, PUT: {kinds:?}");
    assert_eq!(fs::read_link(copy.join("hub/latest"))?, Path::new("private/model"));
    ensure!(fs::read(copy.join("hub/latest"))? == version(1, 100_000), "through the link");
    // (This S3 server stores the object of a directory, but not its metadata.)
    assert_eq!(fs::metadata(copy.join("hub/private/model"))?.mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(copy.join("hub/private/model"))?.mtime(), modified);
    assert_eq!(fs::read_dir(copy.join("hub/empty"))?.count(), 0);
    Ok(())
}

/// The metadata server lets an operation wait for a bucket for 10 s, and then has it sent again.
#[test]
fn an_operation_waits_for_a_slow_bucket_while_others_go_on() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.put("set/sub/file", b"1")?;
    let proxy = Proxy::for_endpoint(&bucket.endpoint())?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let (endpoint, root) = (proxy.endpoint(), cluster.mount().to_owned());
    let add = ["link", "add", "s3://data/set", "mr:/set", "--endpoint", &endpoint];
    cluster.cli(&[&add[..], &["--mode", "import-export"]].concat())?.ok()?;
    assert_eq!(fs::read_dir(root.join("set"))?.count(), 1);
    // Nobody has looked into `sub`: what it holds decides whether it can be removed.
    proxy.set(Weather::Slow(Duration::from_secs(12)));
    let begun = Instant::now();
    let sub = root.join("set/sub");
    let slow = std::thread::spawn(move || fs::remove_dir(sub));
    let mut others = 0;
    while !slow.is_finished() {
        fs::create_dir(root.join(format!("other{others}")))?;
        others += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let refused = slow.join().expect("the remover ends").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()), "{refused}");
    ensure!(begun.elapsed() > Duration::from_secs(11), "the bucket was asked");
    // More than a hundred where nothing else runs.
    ensure!(others > 10, "only {others} others went on");
    Ok(())
}
