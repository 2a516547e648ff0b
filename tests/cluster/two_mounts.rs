//! Two mounts that work in one directory while its bucket stands still.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
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
    thread::spawn(move || done.send(change(&changes).and_then(|()| clash(&changes))));
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

/// Both change the directory at the same time, under the same names and under their own: each waits
/// for what the other has to give back, while its kernel holds the directory for the change.
fn clash(mounts: &[PathBuf; 2]) -> Result<()> {
    thread::scope(|scope| {
        let both = mounts.each_ref().map(|mount| scope.spawn(move || change_beside(mount)));
        both.map(|one| one.join().expect("it does not panic")).into_iter().collect()
    })
}

fn change_beside(mount: &Path) -> Result<()> {
    for round in 0..ROUNDS {
        let (shared, own) = (mount.join(format!("both-{}", round % 3)), mount.join("each"));
        let renamed = mount.join(format!("both-{}", (round + 1) % 3));
        let change = fs::write(&shared, b"of either").and_then(|()| fs::rename(&shared, renamed));
        let change = change.and_then(|()| fs::create_dir(&own)).and_then(|()| fs::remove_dir(own));
        match change.map_err(|error| error.kind()) {
            // The other was faster; who is too late twice is told so.
            Ok(())
            | Err(
                ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::StaleNetworkFileHandle,
            ) => {}
            Err(kind) => bail!("{kind} in round {round}"),
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
