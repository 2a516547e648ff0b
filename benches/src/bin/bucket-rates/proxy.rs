//! `cloud-bucket`, as a process of its own.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};

/// The line to a bucket as in the cloud, so many times slower and longer than the goals have it.
/// Who has twice the time for each byte has what twice as many processors would give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) slower: u32,
}

impl Line {
    /// What the whole of the bucket carries, in MB/s: what the goals of a cloud are shares of.
    pub(crate) fn cap_mb(self) -> f64 {
        f64::from(200 / self.slower)
    }

    fn arguments(self) -> [String; 3] {
        let Self { slower } = self;
        [
            format!("--first-byte={}ms", 20 * slower),
            format!("--connection={}MB", 90 / slower),
            format!("--whole={}MB", 200 / slower),
        ]
    }
}

/// A proxy that serves; when it is dropped it is gone.
pub(crate) struct Proxy {
    process: Child,
    /// Where everybody finds the bucket.
    pub(crate) endpoint: String,
}

impl Proxy {
    /// Starts it before the server at `endpoint`.
    pub(crate) fn start(endpoint: &str, line: Line) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("cloud-bucket");
        let upstream = endpoint.strip_prefix("http://").context("--cloud needs http://")?;
        let mut process = Self::command(&program, upstream.trim_end_matches('/'), line)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let output = process.stdout.take().expect("it is piped");
        let mut proxy = Self { process, endpoint: String::new() };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on ");
        proxy.endpoint = format!("http://{}", address.context("the proxy does not listen")?);
        Ok(proxy)
    }

    fn command(program: &Path, upstream: &str, line: Line) -> Command {
        let mut command = Command::new(program);
        command.args(["--upstream", upstream]).args(line.arguments());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
