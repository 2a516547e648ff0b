//! What daemons tell the service manager that has started them.

use std::{
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{PATIENCE, binaries},
};

#[test]
fn a_start_asks_for_more_time_until_the_daemon_is_ready() -> Result<()> {
    let cluster = Cluster::prepare(Wish::default())?;
    cluster.cli(&["dev", "up", "--targets", "1"])?.ok()?;
    cluster.cli(&["dev", "down"])?.ok()?;
    for (program, settings) in [
        ("millrace-metadata", "metadata/metadata.toml"),
        ("millrace-target", "target-0/target.toml"),
    ] {
        let told = told_by_a_start(program, &cluster.dir().join(settings))?;
        let (ready, before) = told.split_last().context("something is told")?;
        ensure!(ready.starts_with("READY=1\nSTATUS=serv"), "{program}: {told:?}");
        let asks = |message: &String| message == "EXTEND_TIMEOUT_USEC=60000000\n";
        ensure!(!before.is_empty() && before.iter().all(asks), "{program}: {told:?}");
    }
    Ok(())
}

/// What a daemon tells from its start until it is ready; it is killed then.
fn told_by_a_start(program: &str, settings: &Path) -> Result<Vec<String>> {
    let directory = tempfile::tempdir()?;
    let place = directory.path().join("notify");
    let manager = UnixDatagram::bind(&place)?;
    manager.set_read_timeout(Some(PATIENCE))?;
    let mut command = Command::new(binaries().join(program));
    command.arg("--config").arg(settings).env("NOTIFY_SOCKET", &place);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _daemon = Killed(command.spawn()?);
    let (mut told, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let len = manager.recv(&mut buffer).context("waiting for a message")?;
        let message = String::from_utf8(buffer[..len].to_vec())?;
        let is_ready = message.lines().any(|line| line == "READY=1");
        told.push(message);
        if is_ready {
            return Ok(told);
        }
    }
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
