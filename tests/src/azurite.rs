//! A server of Azure's Blob Storage (Azurite, from npm) with one container, and an independent
//! client of it.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::program::repository;

/// The account, and the container that is there.
pub const ACCOUNT: &str = "millrace";
/// See [`ACCOUNT`].
pub const CONTAINER: &str = "data";

/// A running server. Dropping it ends the server.
#[derive(Debug)]
pub struct Azurite {
    child: Child,
    /// Host and port.
    address: String,
    key: Vec<u8>,
}

/// What a request came to.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The lines of the head, in lower case.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Azurite {
    /// Starts a server that keeps blobs in memory, and makes the container.
    ///
    /// # Errors
    /// When it cannot be started: `npm install azurite` brings it.
    pub fn start() -> Result<Self> {
        let key = format!("key-of-a-test-{}", std::process::id()).into_bytes();
        let mut child = Command::new(program())
            .args(["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence"])
            .arg("--disableTelemetry")
            .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{}", STANDARD.encode(&key)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting Azurite, {}", program().display()))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let told = lines.find_map(|line| {
            let line = line.ok()?;
            Some(line.split_once("listens on http://")?.1.trim().to_owned())
        });
        // It logs each request: somebody has to read on.
        std::thread::spawn(move || lines.for_each(drop));
        let address = told.unwrap_or_default();
        let azurite = Self { child, address, key };
        ensure!(!azurite.address.is_empty(), "Azurite does not start: {}", program().display());
        let made = azurite.ask("PUT", "", &[("restype", "container")], &[], b"")?;
        ensure!(made.status == 201, "no container: {made:?}");
        Ok(azurite)
    }

    /// Its address, for links: the account is not in it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The account's key, as a credentials file has it.
    #[must_use]
    pub fn key(&self) -> String {
        STANDARD.encode(&self.key)
    }

    /// Puts a blob, as somebody else would.
    ///
    /// # Errors
    /// What the server answers.
    pub fn put(&self, key: &str, body: &[u8]) -> Result<()> {
        let put = self.ask("PUT", key, &[], &[("x-ms-blob-type", "BlockBlob")], body)?;
        ensure!(put.status == 201, "{key}: {put:?}");
        Ok(())
    }

    /// Gets a blob's bytes.
    ///
    /// # Errors
    /// What the server answers.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let got = self.ask("GET", key, &[], &[], b"")?;
        ensure!(got.status == 200, "{key}: {}", got.head);
        Ok(got.body)
    }

    /// Deletes a blob.
    ///
    /// # Errors
    /// What the server answers.
    pub fn delete(&self, key: &str) -> Result<()> {
        let gone = self.ask("DELETE", key, &[], &[], b"")?;
        ensure!(gone.status == 202, "{key}: {}", gone.head);
        Ok(())
    }

    /// Sends a request about a blob, or about the container, signed with the account's key. Keys
    /// here need no encoding.
    ///
    /// # Errors
    /// When no answer comes.
    pub fn ask(
        &self,
        method: &str,
        key: &str,
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Reply> {
        let slash = if key.is_empty() { "" } else { "/" };
        let path = format!("/{ACCOUNT}/{CONTAINER}{slash}{key}");
        let now = jiff::fmt::rfc2822::DateTimePrinter::new();
        let now = now.timestamp_to_rfc9110_string(&jiff::Timestamp::now())?;
        let mut headers: Vec<_> = headers.to_vec();
        headers.extend([("x-ms-date", now.as_str()), ("x-ms-version", "2023-11-03")]);
        headers.sort_unstable();
        let mut query = query.to_vec();
        query.sort_unstable();
        let signed = |pairs: &[(&str, &str)], separate: &str| {
            pairs
                .iter()
                .map(|(name, value)| format!("{separate}{name}:{value}"))
                .collect::<String>()
        };
        let len = if body.is_empty() { String::new() } else { body.len().to_string() };
        let headers_signed = signed(&headers, "\n");
        let text = format!(
            "{method}\n\n\n{len}\n\n\n\n\n\n\n\n{headers_signed}\n/{ACCOUNT}{path}{}",
            signed(&query, "\n")
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.key);
        let signature = STANDARD.encode(hmac::sign(&key, text.as_bytes()));
        let query: Vec<_> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let mut head = format!("{method} {path}{mark}{} HTTP/1.0\r\n", query.join("&"));
        head += &format!("Host: {}\r\nContent-Length: {}\r\n", self.address, body.len());
        head += &format!("Authorization: SharedKey {ACCOUNT}:{signature}\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let mut stream = TcpStream::connect(&self.address)?;
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        stream.write_all(body)?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply)?;
        let end = reply.windows(4).position(|four| four == b"\r\n\r\n").context("no head")?;
        let head = String::from_utf8_lossy(&reply[..end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.context("no status")?;
        Ok(Reply { status, head, body: reply[end + 4..].to_vec() })
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

/// `MILLRACE_AZURITE`, else the scripts' own.
fn program() -> PathBuf {
    let made = repository().join("target/azurite/node_modules/.bin/azurite-blob");
    env::var_os("MILLRACE_AZURITE").map_or(made, PathBuf::from)
}
