//! Two mounts that work in one directory while its bucket stands still.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::{PATIENCE, wait_for},
    proxy::{Proxy, Weather},
};

const ROUNDS: usize = 60;

/// Names that one mount changes are taken back from the other, by a process of which some requests
/// wait for the bucket.
#[test]
fn names_of_a_directory_change_while_reads_of_its_files_hang() -> Result<()> {
    let bucket = Bucket::start()?;
    let put = "for i in range(2): client.put_object(Bucket='data', Key=f'set/{i}', \
               Body=b'\\x09' * 100000)";
    bucket.script(put, &[])?;
    let proxy = Proxy::for_endpoint(&bucket.endpoint())?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let endpoint = proxy.endpoint();
    let link = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
    cluster.cli(&[&link[..], &["--endpoint", &endpoint]].concat())?.ok()?;
    let mounts = [cluster.mount(), cluster.mount_named("second")];
    cluster.mount_also(&mounts[1])?;
    let mounts = mounts.map(|mount| mount.join("set"));
    for mount in &mounts {
        ensure!(fs::read_dir(mount)?.count() == 2, "the directory is listed");
    }

    proxy.set(Weather::Slow(Duration::from_secs(600)));
    let mut readers = Vec::new();
    for (number, mount) in mounts.iter().enumerate() {
        readers.push(hanging_reader(&mount.join(number.to_string()))?);
    }
    let (done, ended) = mpsc::channel();
    let changes = mounts.clone();
    thread::spawn(move || done.send(change(&changes)));
    let changed = ended.recv_timeout(PATIENCE).context("changes wait for the reads");
    for reader in &mut readers {
        ensure!(reader.try_wait()?.is_none(), "the reads hang");
        reader.kill()?;
        reader.wait()?;
    }
    proxy.set(Weather::Down);
    proxy.set(Weather::Fair);
    changed??;
    for number in ["0", "1"] {
        ensure!(fs::read(mounts[0].join(number))? == [9; 100_000], "the bytes come at last");
    }
    Ok(())
}

/// Each makes a file, which the other sees, and takes away.
fn change(mounts: &[PathBuf; 2]) -> Result<()> {
    for round in 0..ROUNDS {
        for (here, there) in [(0, 1), (1, 0)] {
            let name = format!("{round}-{here}");
            ensure!(!mounts[there].join(&name).exists(), "{name} is not made yet");
            fs::write(mounts[here].join(&name), &name)?;
            ensure!(fs::read_to_string(mounts[there].join(&name))? == name, "{name} has its bytes");
            fs::remove_file(mounts[there].join(&name))?;
            ensure!(!mounts[here].join(&name).exists(), "{name} is gone");
        }
    }
    Ok(())
}

/// A program that waits in the kernel for the bytes of a cold file.
fn hanging_reader(path: &Path) -> Result<Child> {
    let reader = Command::new("cat").arg(path).stdout(Stdio::null()).spawn()?;
    let stat = format!("/proc/{}/stat", reader.id());
    wait_for("a reader that waits", || {
        let text = fs::read_to_string(&stat).ok()?;
        text.rsplit(") ").next()?.starts_with('D').then_some(())
    })?;
    Ok(reader)
}
