//! Keys, tokens and signatures are told to nobody: not in a log, however talkative, not by a
//! program, not in the file system or what it is made of.

use std::{
    fs,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::{Bucket, TemporaryKeys},
    cluster::{Cluster, Wish},
    program::{Said, wait_for},
};
use rustix::fs::{getxattr, listxattr};

/// Beside keys and tokens: what a signed request has in its headers, or in its query.
const SIGNS: [&str; 2] = ["AWS4-HMAC-SHA256", "Signature="];

/// Nobody has this key.
const WRONG_SECRET: &str = "guessed-secret-key-of-nobody";

/// By one part, and by two.
const SMALL_LEN: usize = 100_000;
const LARGE_LEN: usize = 12_000_000;

struct World {
    cluster: Cluster,
    bucket: Bucket,
    keys: TemporaryKeys,
    credentials: PathBuf,
    /// What programs have said, and what files say of themselves.
    told: Vec<String>,
    _folder: tempfile::TempDir,
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect()
}

fn write_credentials(path: &Path, keys: &TemporaryKeys, secret: &str) -> Result<()> {
    let text = format!(
        "[temporary]\naws_access_key_id = '{}'\naws_secret_access_key = '{secret}'\n\
         aws_session_token = '{}'\n",
        keys.id, keys.token
    );
    let next = path.with_extension("next");
    fs::write(&next, text)?;
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600))?;
    Ok(fs::rename(next, path)?)
}

impl World {
    fn new() -> Result<Self> {
        let bucket = Bucket::start_with_sts()?;
        for (name, len) in [("small", SMALL_LEN), ("large", LARGE_LEN), ("other", SMALL_LEN)] {
            bucket.put(&format!("set/{name}"), &bytes(len))?;
        }
        let keys = bucket.temporary_keys()?;
        let folder = tempfile::tempdir()?;
        let credentials = folder.path().join("credentials.toml");
        write_credentials(&credentials, &keys, &keys.secret)?;
        // All that they, and what they are made of, could ever say.
        let environment = vec![("RUST_LOG".to_owned(), "trace".to_owned())];
        let wish = Wish { environment, credentials: Some(credentials.clone()), ..Wish::default() };
        let cluster = Cluster::start(wish)?;
        Ok(Self { cluster, bucket, keys, credentials, told: Vec::new(), _folder: folder })
    }

    fn say(&mut self, arguments: &[&str]) -> Result<Said> {
        let said = self.cluster.cli(arguments)?;
        self.told.push(said.to_string());
        Ok(said)
    }

    fn works(&mut self) -> Result<()> {
        let endpoint = self.bucket.endpoint();
        let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
        let more = ["--endpoint", &endpoint, "--credentials", "temporary"];
        self.say(&[&add[..], &more].concat())?.ok()?;
        self.say(&["import", "mr:/set", "--wait"])?.ok()?;
        let root = self.cluster.mount().join("set");
        let mut piece = [0; 4_096];
        fs::File::open(root.join("large"))?.read_exact_at(&mut piece, 9_000_000)?;
        ensure!(piece == bytes(LARGE_LEN)[9_000_000..9_004_096], "read lazily");
        ensure!(fs::read(root.join("small"))? == bytes(SMALL_LEN), "read");
        fs::write(root.join("made"), bytes(LARGE_LEN))?;
        fs::write(root.join("small"), b"changed")?;
        let told = self.say(&["--json", "export", "mr:/set", "--report", "--wait"])?.ok()?;
        let job: serde_json::Value = serde_json::from_str(&told)?;
        let id = job["id"].to_string();
        ensure!(self.bucket.get("set/made")? == bytes(LARGE_LEN), "exported by parts");
        ensure!(self.bucket.get("set/small")? == b"changed", "exported");
        for arguments in [
            &["job", "report", &id][..],
            &["--json", "job", "show", &id],
            &["--json", "job", "list"],
            &["--json", "link", "list", "--requests"],
            &["link", "list"],
            &["link", "check"],
            &["--json", "link", "check"],
            &["--json", "state", "mr:/set/made"],
            &["--json", "status"],
            &["--json", "dev", "status"],
        ] {
            self.say(arguments)?.ok()?;
        }
        for name in ["small", "large", "made"] {
            self.attributes(&root.join(name))?;
        }
        Ok(())
    }

    /// What a file says of itself.
    fn attributes(&mut self, path: &Path) -> Result<()> {
        let mut value = vec![0; 4_096];
        let len = listxattr(path, &mut value)?;
        self.told.push(String::from_utf8_lossy(&value[..len]).into_owned());
        for name in ["state", "hydrated", "origin", "etag"] {
            let len = getxattr(path, format!("user.millrace.{name}"), &mut value)?;
            self.told.push(String::from_utf8_lossy(&value[..len]).into_owned());
        }
        Ok(())
    }

    /// The same with a key that is nobody's: servers quote of such requests what they please.
    fn is_refused(&mut self) -> Result<()> {
        write_credentials(&self.credentials, &self.keys, WRONG_SECRET)?;
        let check = || {
            let said = self.cluster.cli(&["link", "check", "mr:/set"]).ok()?;
            let hosts = said.stdout.matches("the secret key is wrong").count();
            (said.code == Some(1) && hosts == 3).then_some(said)
        };
        let said = wait_for("each host to use the wrong key", check)?;
        self.told.push(said.to_string());
        let root = self.cluster.mount().join("set");
        let denied = fs::read(root.join("other")).map_err(|error| error.kind());
        ensure!(denied == Err(std::io::ErrorKind::PermissionDenied), "{denied:?}");
        for name in ["late-small", "late-large"] {
            let len = if name == "late-small" { SMALL_LEN } else { LARGE_LEN };
            fs::write(root.join(name), bytes(len))?;
        }
        for job in ["export", "import", "hydrate"] {
            let said = self.say(&[job, "mr:/set", "--wait"])?;
            ensure!(said.code == Some(1), "{job}: {said}");
        }
        self.say(&["--json", "job", "list"])?.ok()?;
        Ok(())
    }

    /// Looks for `words` in all that was said, and in each file below the cluster's directory, with
    /// logs, the log of commands, snapshots, stores and a backup among them.
    fn told_of(&self, words: &[&str]) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for text in &self.told {
            for word in words.iter().filter(|word| text.contains(*word)) {
                found.push(format!("{word:?} is said: {text}"));
            }
        }
        let files = files_below(&self.cluster.dir())?.into_iter();
        for path in files.chain(files_below(&self.cluster.scratch()?)?) {
            for word in words_in(&path, words)? {
                found.push(format!("{word:?} is in {}", path.display()));
            }
        }
        Ok(found)
    }
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Those of some words that stand in a file, whatever else does.
fn words_in<'a>(path: &Path, words: &[&'a str]) -> Result<Vec<&'a str>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let has = |word: &str| {
        let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == word.as_bytes()[0]);
        starts.into_iter().any(|(at, _)| bytes[at..].starts_with(word.as_bytes()))
    };
    Ok(words.iter().copied().filter(|word| has(word)).collect())
}

#[test]
fn no_key_token_or_signature_is_told_however_much_is_logged() -> Result<()> {
    let mut world = World::new()?;
    world.works()?;
    world.is_refused()?;
    let backup = world.cluster.scratch()?.join("backup");
    let backup = backup.to_str().context("a temporary path is text")?.to_owned();
    world.say(&["metadata", "backup", &backup])?.ok()?;
    // What is still in memory is written when they end.
    world.say(&["dev", "down"])?.ok()?;

    let TemporaryKeys { id, secret, token } = world.keys.clone();
    let words = [&[secret.as_str(), &token, WRONG_SECRET][..], &SIGNS].concat();
    let found = world.told_of(&words)?;
    ensure!(found.is_empty(), "{}", found.join("\n"));

    // It was looked at the right places, and in the right way.
    ensure!(words_in(&world.credentials, &[&token])? == [token.as_str()], "a file that has it");
    for daemon in ["metadata", "target-0"] {
        let log = world.cluster.log(daemon);
        for line in ["TRACE hyper_util", "TRACE reqwest"] {
            ensure!(log.contains(line), "{daemon} logs all that its HTTP client says");
        }
    }
    let names = world.told_of(&["set/made", &id])?;
    ensure!(names.iter().any(|found| found.contains("/metadata/data/")), "{names:?}");
    ensure!(names.iter().any(|found| found.ends_with("/backup")), "{names:?}");
    Ok(())
}
