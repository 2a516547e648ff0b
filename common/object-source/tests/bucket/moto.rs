//! moto's S3 server, on a free port of loopback, gone with the test: another reading of S3 than
//! SeaweedFS has, so that nothing here rests on one server's habits.

use std::{
    env,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::weed::free_ports;

/// A running server that takes any credentials, with a bucket `data`.
pub(crate) struct Moto {
    process: Child,
    port: u16,
}

impl Moto {
    /// Starts it, waits until it answers, and makes the bucket.
    pub(crate) fn start() -> Self {
        // Another program may take a port between its choice and its use.
        (0..3).find_map(|_| Self::attempt()).expect(
            "moto ends before it answers: `pip install 'moto[s3,server]'` for the Python that \
             MILLRACE_TEST_PYTHON names",
        )
    }

    /// `None`: it has ended.
    fn attempt() -> Option<Self> {
        let [port] = free_ports();
        let process = Command::new(python())
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Python starts");
        let mut moto = Self { process, port };
        moto.serves().then_some(moto)
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Waits until it answers; false when it ends.
    fn serves(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.make_bucket().is_none() {
            if self.has_ended() {
                return false;
            }
            assert!(Instant::now() < deadline, "moto does not answer within 120 s");
            // Another process: there is nothing to wait on but its port.
            thread::sleep(Duration::from_millis(50));
        }
        !self.has_ended()
    }

    fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    fn make_bucket(&self) -> Option<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let request = "PUT /data HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n";
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        // An attempt whose answer was lost may have made it.
        (answer.contains(" 200 ") || answer.contains("BucketAlready")).then_some(())
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        if self.process.kill().is_ok() {
            self.process.wait().expect("a killed child is reaped");
        }
    }
}

fn python() -> PathBuf {
    let made = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/python/bin/python");
    env::var_os("MILLRACE_TEST_PYTHON").map_or_else(|| made.into(), PathBuf::from)
}
