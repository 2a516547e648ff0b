//! Links to buckets: hydration, export, and buckets that are away or forbidden.

use std::{collections::BTreeMap, fs, io::Write as _, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::wait_for,
    proxy::{Proxy, Weather},
};
use rustix::{
    fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr},
    io::Errno,
};

fn state(cluster: &Cluster, path: &str) -> Result<String> {
    let told = cluster.json(&["state", path])?;
    told["state"].as_str().map(str::to_owned).with_context(|| told.to_string())
}

/// What a reader fetches from a bucket is stored a little after it has its bytes.
fn becomes(cluster: &Cluster, path: &str, expected: &str) -> Result<()> {
    wait_for("what was read to be stored", || {
        (state(cluster, path).ok()? == expected).then_some(())
    })
    .with_context(|| format!("{path} is {:?} and not {expected}", state(cluster, path)))
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|index| u8::try_from((index * 31 + index / 251 + seed) % 256).unwrap_or(0))
        .collect()
}

#[test]
fn objects_are_files_and_are_fetched_once() -> Result<()> {
    let bucket = Bucket::start()?;
    let objects = BTreeMap::from([
        ("set/empty", bytes(0, 0)),
        ("set/small", bytes(1_000, 1)),
        ("set/sub/large", bytes(20_000_000, 2)),
        ("other/hidden", bytes(10, 3)),
    ]);
    for (key, body) in &objects {
        bucket.put(key, body)?;
    }
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set"])?.ok()?;
    let root = cluster.mount().join("set");
    for (key, body) in &objects {
        let Some(name) = key.strip_prefix("set/") else { continue };
        assert!(fs::read(root.join(name))? == *body, "{key}");
    }
    assert!(!root.join("hidden").exists());
    becomes(&cluster, "mr:/set/sub/large", "hydrated")?;

    let before = bucket.requests()?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    assert!(fs::read(second.join("set/sub/large"))? == objects["set/sub/large"]);
    assert_eq!(bucket.requests()?, before, "another reader asks the bucket nothing");
    Ok(())
}

#[test]
fn a_job_over_some_files_says_what_it_works_on_and_is_run_again() -> Result<()> {
    let bucket = Bucket::start()?;
    for key in ["set/a.jpg", "set/sub/b.jpg", "set/c.txt", "set/old/d.jpg"] {
        bucket.put(key, &bytes(1_000, 1))?;
    }
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set"])?.ok()?;
    let select = ["--include", "*.jpg", "--exclude", "old/**"];
    let hydrate = |more: &[&str]| {
        let path = cluster.mount().join("set");
        let path = path.to_str().context("a path")?;
        cluster.json(&[&["hydrate", path, "--wait"], &select[..], more].concat())
    };
    let counted = hydrate(&["--dry-run"])?;
    assert_eq!((&counted["files_total"], &counted["files_done"]), (&2.into(), &0.into()));
    assert_eq!(state(&cluster, "mr:/set/a.jpg")?, "released");
    let done = hydrate(&[])?;
    assert_eq!((&done["files_done"], &done["bytes_done"]), (&2.into(), &2_000.into()));
    for (path, expected) in [
        ("mr:/set/a.jpg", "hydrated"),
        ("mr:/set/sub/b.jpg", "hydrated"),
        ("mr:/set/c.txt", "released"),
        ("mr:/set/old/d.jpg", "released"),
    ] {
        assert_eq!(state(&cluster, path)?, expected, "{path}");
    }
    let id = done["id"].to_string();
    let again = cluster.json(&["job", "retry", &id, "--wait"])?;
    assert_eq!((&again["files_done"], &again["state"]), (&2.into(), &"succeeded".into()));
    let shown = cluster.cli(&["job", "show", &again["id"].to_string()])?;
    let told = "--include '*.jpg' --exclude 'old/**'";
    ensure!(shown.stdout.contains(told), "{}", shown.stdout);
    let wrong = cluster.cli(&["hydrate", "mr:/set", "--include", "a["])?;
    ensure!(wrong.code == Some(1) && wrong.stderr.contains("a["), "{}", wrong.stderr);
    Ok(())
}

#[test]
fn a_small_read_of_a_large_object_does_not_fetch_it_whole() -> Result<()> {
    let bucket = Bucket::start()?;
    let body = bytes(64_000_000, 5);
    bucket.put("big/object", &body)?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/big", "mr:/big"])?.ok()?;
    let file = fs::File::open(cluster.mount().join("big/object"))?;
    let mut piece = [0; 4_096];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut piece, 50_000_000)?;
    assert!(piece == body[50_000_000..50_004_096]);
    let told = cluster.json(&["state", "mr:/big/object"])?;
    let hydrated = told["hydrated_bytes"].as_u64().context("a number")?;
    assert!(hydrated < 40_000_000, "{told}");
    Ok(())
}

/// One that is fetched whole, one by ranges: the server is asked in different ways, and says why in
/// the answers to both.
#[test]
fn what_is_encrypted_with_its_owners_key_has_a_name_and_is_refused_as_that() -> Result<()> {
    let bucket = Bucket::start()?;
    let sizes = [("small", 1_000), ("large", 3_000_000)];
    for (name, size) in sizes {
        let put = "client.put_object(Bucket='data', Key=sys.argv[2], Body=bytes(int(sys.argv[3])),\
            SSECustomerAlgorithm='AES256', SSECustomerKey=b'k' * 32)";
        bucket.script(put, &[&format!("set/{name}"), &size.to_string()])?;
    }
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set"])?.ok()?;
    for (name, size) in sizes {
        let path = cluster.mount().join("set").join(name);
        ensure!(fs::metadata(&path)?.len() == size, "{name}");
        let error = fs::read(&path).err().context("nobody here has the key")?;
        let expected = Errno::OPNOTSUPP.raw_os_error();
        ensure!(error.raw_os_error() == Some(expected), "{name}: {error}");
    }
    bucket.put("set/open", b"body")?;
    cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
    let said = cluster.cli(&["--json", "hydrate", "mr:/set", "--wait"])?;
    ensure!(said.code == Some(1), "{said}");
    let words = said.stdout.matches("encrypted with a key that only its owner has (SSE-C)");
    ensure!(words.count() == 2, "{said}");
    ensure!(fs::read(cluster.mount().join("set/open"))? == b"body");
    Ok(())
}

#[test]
fn an_exported_file_is_in_the_bucket_and_released_it_comes_back() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.put("out/there", b"there")?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let add = ["link", "add", "s3://data/out", "mr:/out", "--mode", "import-export"];
    cluster.cli(&add)?.ok()?;
    let root = cluster.mount().join("out");
    let whole = bytes(33_333_333, 9);
    fs::create_dir(root.join("made"))?;
    fs::write(root.join("made/checkpoint"), &whole)?;
    assert_eq!(state(&cluster, "mr:/out/made/checkpoint")?, "dirty");
    cluster.cli(&["export", "mr:/out", "--wait"])?.ok()?;
    assert!(bucket.get("out/made/checkpoint")? == whole);
    assert_eq!(bucket.get("out/there")?, b"there");
    assert_eq!(state(&cluster, "mr:/out/made/checkpoint")?, "exported");

    cluster.cli(&["release", "mr:/out", "--wait"])?.ok()?;
    assert_eq!(state(&cluster, "mr:/out/made/checkpoint")?, "released");
    assert!(fs::read(root.join("made/checkpoint"))? == whole);
    Ok(())
}

/// What a file says of its bucket.
fn said(path: &Path, name: &str) -> rustix::io::Result<String> {
    let mut value = vec![0; 256];
    let len = getxattr(path, format!("user.millrace.{name}"), &mut value)?;
    Ok(String::from_utf8_lossy(&value[..len]).into_owned())
}

#[test]
fn a_program_asks_a_file_how_it_stands_and_no_copy_takes_the_answer_along() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.put("out/there", &bytes(200_000, 1))?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let add = ["link", "add", "s3://data/out", "mr:/out", "--mode", "import-export"];
    cluster.cli(&add)?.ok()?;
    let root = cluster.mount().join("out");
    let there = root.join("there");
    let all = |path: &Path| {
        ["state", "hydrated", "origin"].map(|name| said(path, name).unwrap_or_default())
    };
    assert_eq!(all(&there), ["released", "0", "s3://data/out/there"]);
    let told = cluster.json(&["state", "mr:/out/there"])?;
    assert_eq!(Some(said(&there, "etag")?.as_str()), told["origin"]["tag"].as_str(), "{told}");
    fs::read(&there)?;
    let hydrated = ["hydrated", "200000", "s3://data/out/there"];
    wait_for("what was read to be stored", || (all(&there) == hydrated).then_some(()))
        .with_context(|| format!("{:?}", all(&there)))?;

    // What is written and not closed yet counts.
    let made = root.join("made");
    let mut file = fs::File::create(&made)?;
    file.write_all(b"made here")?;
    assert_eq!(all(&made), ["dirty", "9", ""]);
    assert_eq!(said(&made, "etag"), Err(Errno::NODATA));
    drop(file);
    cluster.cli(&["export", "mr:/out", "--wait"])?.ok()?;
    assert_eq!(all(&made), ["exported", "9", "s3://data/out/made"]);

    let mut names = [0; 256];
    assert_eq!(listxattr(&there, &mut names)?, 0, "it is in no list");
    let name = "user.millrace.state";
    assert_eq!(setxattr(&there, name, b"x", XattrFlags::empty()), Err(Errno::PERM));
    assert_eq!(removexattr(&there, name), Err(Errno::PERM));
    assert_eq!(said(&there, "other"), Err(Errno::NODATA));
    setxattr(&there, "user.millrace.other", b"of a program", XattrFlags::empty())?;
    assert_eq!(said(&there, "other")?, "of a program");
    assert_eq!(said(&root, "state"), Err(Errno::NODATA), "a directory has many");
    Ok(())
}

#[test]
fn a_hydrated_tree_is_read_while_the_bucket_is_away() -> Result<()> {
    let bucket = Bucket::start()?;
    for index in 0..20 {
        bucket.put(&format!("set/file-{index}"), &bytes(200_000, index))?;
    }
    let proxy = Proxy::for_endpoint(&bucket.endpoint())?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let endpoint = proxy.endpoint();
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set", "--endpoint", &endpoint])?.ok()?;
    proxy.set(Weather::Slow(Duration::from_millis(20)));
    cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
    proxy.set(Weather::Down);
    for index in 0..20 {
        let path = cluster.mount().join(format!("set/file-{index}"));
        assert!(fs::read(path)? == bytes(200_000, index));
    }
    Ok(())
}

#[test]
fn a_forbidden_an_absent_and_an_unreachable_bucket_are_refused_with_what_to_do() -> Result<()> {
    let bucket = Bucket::start()?;
    let allowed = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let refused = |cluster: &Cluster, url: &str, options: &[&str], words: &[&str]| -> Result<()> {
        let said = cluster.cli(&[&["link", "add", url, "mr:/x"], options].concat())?;
        ensure!(said.code == Some(1), "{said}");
        for word in words.iter().chain(&["metadata server", "target-0", "target-1"]) {
            ensure!(said.stderr.contains(word), "no {word:?} in: {said}");
        }
        ensure!(!cluster.mount().join("x").exists(), "nothing is linked");
        Ok(())
    };
    let words = ["no-such-bucket", "does not exist: check its name and the endpoint"];
    refused(&allowed, "s3://no-such-bucket/x", &[], &words)?;
    let away = ["--endpoint", "http://127.0.0.1:9"];
    let words = ["127.0.0.1:9", "nobody listens there", "check the endpoint"];
    refused(&allowed, "s3://data/x", &away, &words)?;
    refused(&allowed, "file:///no/such/directory", &[], &["/no/such/directory", "make it"])?;
    let named = ["--credentials", "team-a"];
    refused(&allowed, "s3://data/x", &named, &["\"team-a\"", "[buckets] credentials_file"])?;
    drop(allowed);

    // The environment's keys may do nothing, those of a section of the file may do everything.
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("credentials.toml");
    bucket.write_credentials(&file, "team-a")?;
    let environment = bucket.denied_environment();
    let wish = Wish { environment, credentials: Some(file.clone()), ..Wish::default() };
    let denied = Cluster::start(wish)?;
    let words = ["refuses access: check the credentials and their policy"];
    refused(&denied, "s3://data/x", &[], &words)?;
    let other = ["--credentials", "team-b"];
    let path = file.to_str().context("a temporary path is text")?;
    refused(&denied, "s3://data/x", &other, &["team-b", path])?;
    denied.cli(&["link", "add", "s3://data/x", "mr:/x", "--credentials", "team-a"])?.ok()?;
    bucket.put("x/object", b"body")?;
    assert_eq!(fs::read(denied.mount().join("x/object"))?, b"body");
    Ok(())
}

#[test]
fn an_operator_sees_who_reaches_a_bucket_and_what_changed_on_both_sides() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.put("set/file", b"first")?;
    let proxy = Proxy::for_endpoint(&bucket.endpoint())?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let endpoint = proxy.endpoint();
    let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
    cluster.cli(&[&add[..], &["--endpoint", &endpoint]].concat())?.ok()?;
    let checked = cluster.json(&["link", "check"])?;
    let hosts = checked[0]["hosts"].as_array().context("a list")?;
    ensure!(checked[0]["usable"] == true && hosts.len() == 3, "{checked}");
    ensure!(hosts.iter().all(|host| host["error"].is_null()), "{checked}");
    ensure!(hosts.iter().all(|host| host["untried"] == serde_json::json!([])), "{checked}");
    proxy.set(Weather::Down);
    let said = cluster.cli(&["link", "check", "mr:/set"])?;
    ensure!(said.code == Some(1) && said.stdout.contains("cannot be read and written"), "{said}");
    ensure!(
        said.stdout.matches(&endpoint).count() == 3,
        "each host says whom it cannot reach: {said}"
    );
    let other = cluster.cli(&["link", "check", "mr:/"])?;
    ensure!(
        other.code == Some(1) && other.stderr.contains("not the directory of a link"),
        "{other}"
    );
    proxy.set(Weather::Fair);

    let file = cluster.mount().join("set/file");
    fs::write(&file, b"written here")?;
    ensure!(cluster.json(&["conflicts", "list"])? == serde_json::json!([]));
    bucket.put("set/file", b"written there")?;
    cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
    let listed = cluster.json(&["conflicts", "list"])?;
    let (path, size, key) = (&listed[0]["path"], &listed[0]["size_bytes"], &listed[0]["key"]);
    ensure!(*path == "/set/file" && *size == 12 && *key == "set/file", "{listed}");
    cluster.cli(&["conflicts", "resolve", "mr:/set/file", "--keep", "bucket"])?.ok()?;
    ensure!(cluster.cli(&["conflicts", "list"])?.ok()?.contains("no conflicts"));
    ensure!(fs::read(&file)? == b"written there");
    Ok(())
}
