//! A real S3 server (SeaweedFS, or moto) with one bucket, run by `tests/e2e/bucket_server.py`.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::program::{PATIENCE, finish, repository};

/// While others ask all the time, no two looks at the counts of requests agree.
const COUNTS_MAX: u32 = 20;
const COUNT_PAUSE: Duration = Duration::from_millis(200);

/// Keys to a bucket that are valid for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemporaryKeys {
    /// What names them in each request.
    pub id: String,
    /// What requests are signed with.
    pub secret: String,
    /// What comes with each request, and is as good as a secret.
    pub token: String,
}

/// A running S3 server. Dropping it ends the server; so does the death of this process.
#[derive(Debug)]
pub struct Bucket {
    child: Child,
    told: Value,
    // Removed after the server has ended: see `Drop`.
    _directory: tempfile::TempDir,
}

impl Bucket {
    /// Starts a server and makes a bucket named `data`.
    ///
    /// # Errors
    /// When the server cannot be started, or Python lacks what it needs.
    pub fn start() -> Result<Self> {
        Self::start_server("weed")
    }

    /// The same with moto, another server, which counts no requests and knows no identities.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_moto() -> Result<Self> {
        Self::start_server("moto")
    }

    /// As [`Self::start`], with a server that gives [`TemporaryKeys`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_sts() -> Result<Self> {
        Self::start_server("weed-sts")
    }

    fn start_server(program: &str) -> Result<Self> {
        let directory = crate::cluster::working_directory("bucket-")?;
        let mut child = Command::new(python())
            .arg(repository().join("tests/e2e/bucket_server.py"))
            .arg("--dir")
            .arg(directory.path())
            .args(["--server", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the S3 server's script")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("stdout is piped")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let told = serde_json::from_str(&line)
            .with_context(|| format!("the S3 server did not start: {line:?}"))?;
        let bucket = Self { child, told, _directory: directory };
        bucket.script("make_bucket(client, 'data')", &[])?;
        Ok(bucket)
    }

    /// Its address, such as `http://127.0.0.1:40123`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.text("endpoint")
    }

    /// Credentials that may do everything, as a daemon's environment.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        self.credentials(&self.text("access_key"), &self.text("secret_key"))
    }

    /// Credentials that are valid and may do nothing.
    #[must_use]
    pub fn denied_environment(&self) -> Vec<(String, String)> {
        self.credentials(&self.text("denied_access_key"), &self.text("denied_secret_key"))
    }

    /// Whether the server knows who asks, and refuses strangers.
    #[must_use]
    pub fn has_identities(&self) -> bool {
        self.told["has_identities"] == true
    }

    /// Writes a file in which the section `name` holds credentials that may do everything.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_credentials(&self, path: &Path, name: &str) -> Result<()> {
        let (key, secret) = (self.text("access_key"), self.text("secret_key"));
        let text =
            format!("[{name}]\naws_access_key_id = '{key}'\naws_secret_access_key = '{secret}'\n");
        fs::write(path, text)?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
    }

    /// Temporary keys that may do everything, each time others: of [`Self::start_with_sts`] only.
    ///
    /// # Errors
    /// What the server answers.
    pub fn temporary_keys(&self) -> Result<TemporaryKeys> {
        let ask = "from bucket_server import assume_role; print(*assume_role(client))";
        let told = self.script(ask, &[])?;
        let mut words = told.split_whitespace().map(str::to_owned);
        let mut next = || words.next().with_context(|| format!("no keys in {told:?}"));
        Ok(TemporaryKeys { id: next()?, secret: next()?, token: next()? })
    }

    fn credentials(&self, key: &str, secret: &str) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", key),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", &self.endpoint()),
            ("AWS_ALLOW_HTTP", "true"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// Puts an object with an independent client (boto3).
    ///
    /// # Errors
    /// What the server answers.
    pub fn put(&self, key: &str, body: &[u8]) -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), body)?;
        let path = file.path().to_str().context("a temporary path is text")?;
        let put = "client.upload_file(sys.argv[3], 'data', sys.argv[2])";
        self.script(put, &[key, path]).map(drop)
    }

    /// Gets an object with an independent client (boto3).
    ///
    /// # Errors
    /// What the server answers.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let file = tempfile::NamedTempFile::new()?;
        let path = file.path().to_str().context("a temporary path is text")?;
        let get = "client.download_file('data', sys.argv[2], sys.argv[3])";
        self.script(get, &[key, path])?;
        Ok(fs::read(file.path())?)
    }

    /// Runs Python with a boto3 `client` and `make_bucket`; `arguments` are `sys.argv[2:]`.
    ///
    /// # Errors
    /// When Python fails; what it said is in the error.
    pub fn script(&self, python_text: &str, arguments: &[&str]) -> Result<String> {
        let setup = "import json, sys; sys.path.insert(0, sys.argv[1])\n\
                     from bucket_server import make_bucket, s3_client\n";
        let open = format!(
            "client = s3_client({:?}, {:?}, {:?})\n",
            self.endpoint(),
            self.text("access_key"),
            self.text("secret_key")
        );
        let mut command = Command::new(python());
        command.arg("-c").arg(format!("{setup}{open}{python_text}"));
        command.arg(repository().join("tests/e2e")).args(arguments);
        finish(&mut command, PATIENCE)?.ok()
    }

    /// How many requests the server has answered, by kind (`GET`, which counts HEAD too, `LIST`,
    /// `PUT`, ...). It may count one a moment after its answer has come: two looks must agree.
    ///
    /// # Errors
    /// When its metrics cannot be read.
    pub fn requests(&self) -> Result<BTreeMap<String, u64>> {
        let mut counts = self.counted()?;
        for _ in 0..COUNTS_MAX {
            thread::sleep(COUNT_PAUSE);
            let again = self.counted()?;
            if again == counts {
                break;
            }
            counts = again;
        }
        Ok(counts)
    }

    fn counted(&self) -> Result<BTreeMap<String, u64>> {
        let mut counts = BTreeMap::new();
        for line in http_get(&self.text("metrics_url"))?.lines() {
            let Some(rest) = line.strip_prefix("SeaweedFS_s3_request_total{") else { continue };
            let (labels, value) = rest.rsplit_once("} ").context("a metric without a value")?;
            let kind = labels.split("type=\"").nth(1).and_then(|rest| rest.split('"').next());
            let count: u64 = value.trim().parse()?;
            *counts.entry(kind.unwrap_or_default().to_owned()).or_default() += count;
        }
        Ok(counts)
    }

    fn text(&self, field: &str) -> String {
        let value = self.told[field].as_str();
        value.expect("the server's script tells its fields").to_owned()
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // The end of its input tells the script to end the server.
        drop(self.child.stdin.take());
        drop(self.child.wait());
    }
}

/// The Python that has boto3 and the server: `MILLRACE_TEST_PYTHON`, else the scripts' own.
#[must_use]
pub fn python() -> PathBuf {
    let made = repository().join("target/python/bin/python");
    env::var_os("MILLRACE_TEST_PYTHON").map_or(made, PathBuf::from)
}

fn http_get(url: &str) -> Result<String> {
    let (host, path) = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once('/'))
        .context("not an http address")?;
    let mut stream = TcpStream::connect(host)?;
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_keeps_objects_and_counts_each_request_once() {
        let bucket = Bucket::start().unwrap();
        bucket.put("folder/key", b"body").unwrap();
        let before = bucket.requests().unwrap();
        assert_eq!(bucket.get("folder/key").unwrap(), b"body");
        let after = bucket.requests().unwrap();
        let total = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
        // boto3's download asks for the size with HEAD and then for the bytes.
        assert_eq!(total(&after) - total(&before), 2, "{before:?} {after:?}");
        let listed = "print(len(client.list_objects_v2(Bucket='data')['Contents']))";
        assert_eq!(bucket.script(listed, &[]).unwrap().trim(), "1");
    }
}
