//! Named credentials in a file that only its owner can read, read again when it has changed.
//!
//! The file is either TOML (its name ends in `.toml`) or in the form of `~/.aws/credentials`:
//!
//! ```text
//! [training]
//! aws_access_key_id = AKIA...
//! aws_secret_access_key = ...
//! aws_session_token = ...          (if temporary)
//! ```

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use object_store::{CredentialProvider, aws::AwsCredential};

use crate::Error;

/// The credentials of one section, followed through changes of the file.
#[derive(Debug)]
pub(crate) struct SectionCredentials {
    path: PathBuf,
    section: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    looked_at: Instant,
    stamp: Stamp,
    credential: Arc<AwsCredential>,
}

/// What tells a changed file: an editor replaces it, a script rewrites it in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

/// A change is noticed within this time; looking costs a system call.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Larger files are refused: nobody has this many credentials.
const FILE_LEN_MAX: u64 = 1024 * 1024;

impl SectionCredentials {
    /// Reads a section for the first time.
    ///
    /// # Errors
    /// [`Error::Denied`] with a sentence: no such file or section, a file that others can read, or
    /// keys missing in it.
    pub(crate) fn open(path: &Path, section: &str) -> Result<Self, Error> {
        let (stamp, credential) = load(path, section)?;
        let state = State { looked_at: Instant::now(), stamp, credential: Arc::new(credential) };
        Ok(Self { path: path.to_owned(), section: section.to_owned(), state: Mutex::new(state) })
    }

    /// The credentials as the file says now.
    fn current(&self) -> Result<Arc<AwsCredential>, Error> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.looked_at.elapsed() >= LOOK_INTERVAL {
            let unchanged = fs::metadata(&self.path).is_ok_and(|now| stamp(&now) == state.stamp);
            if !unchanged {
                let (stamp, credential) = load(&self.path, &self.section)?;
                state.stamp = stamp;
                state.credential = Arc::new(credential);
                tracing::info!(file = %self.path.display(), section = %self.section,
                    "credentials file changed: read again");
            }
            state.looked_at = Instant::now();
        }
        Ok(Arc::clone(&state.credential))
    }
}

#[async_trait]
impl CredentialProvider for SectionCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.current().map_err(|error| object_store::Error::Unauthenticated {
            path: self.section.clone(),
            source: Box::new(error),
        })
    }
}

fn stamp(metadata: &fs::Metadata) -> Stamp {
    Stamp {
        inode: metadata.ino(),
        len: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    }
}

fn load(path: &Path, section: &str) -> Result<(Stamp, AwsCredential), Error> {
    let fail = |why: String| Error::Denied {
        message: format!("credentials file {}: {why}", path.display()),
    };
    let mut file = fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| fail(error.to_string()))?;
    if metadata.mode() & 0o077 != 0 {
        return Err(fail(format!(
            "others than its owner can use it (mode {:03o}): run chmod 600",
            metadata.mode() & 0o777
        )));
    }
    if metadata.len() > FILE_LEN_MAX {
        return Err(fail("larger than 1 MiB".to_owned()));
    }
    let mut text = String::new();
    file.by_ref()
        .take(FILE_LEN_MAX)
        .read_to_string(&mut text)
        .map_err(|error| fail(error.to_string()))?;
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let sections = if is_toml { parse_toml(&text) } else { parse_ini(&text) }.map_err(fail)?;
    let values =
        sections.get(section).ok_or_else(|| fail(format!("there is no section [{section}]")))?;
    let value = |name: &str| {
        let aws = format!("aws_{name}");
        values.get(name).or_else(|| values.get(&aws)).cloned()
    };
    let needed = |name: &str| {
        value(name).ok_or_else(|| fail(format!("section [{section}] has no aws_{name}")))
    };
    let credential = AwsCredential {
        key_id: needed("access_key_id")?,
        secret_key: needed("secret_access_key")?,
        token: value("session_token"),
    };
    // They travel in headers; other bytes would fail there without saying where they came from.
    let sound = |text: &str| text.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    let token_sound = credential.token.as_deref().is_none_or(sound);
    if !sound(&credential.key_id) || !sound(&credential.secret_key) || !token_sound {
        return Err(fail(format!("section [{section}] has a value with unexpected characters")));
    }
    Ok((stamp(&metadata), credential))
}

type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Reads TOML. Its own message quotes the line, which may hold a secret: only the place is told.
fn parse_toml(text: &str) -> Result<Sections, String> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).map_or(0, |before| before.matches('\n').count()) + 1;
        format!("line {line} is no TOML of sections with text values")
    })
}

/// Reads the form of `~/.aws/credentials`: sections, `key = value`, comments with `#` or `;`.
fn parse_ini(text: &str) -> Result<Sections, String> {
    let mut sections = Sections::new();
    let mut current: Option<String> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim().to_owned();
            sections.entry(name.clone()).or_default();
            current = Some(name);
            continue;
        }
        let entry = current.as_ref().and_then(|section| sections.get_mut(section));
        match (entry, line.split_once('=')) {
            (Some(section), Some((key, value))) => {
                section.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
            }
            _ => {
                return Err(format!("line {number} is neither [section] nor key = value"));
            }
        }
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const INI: &str = "# keys\n[one]\naws_access_key_id = AK1\naws_secret_access_key=s1==\n\n\
                       [two]\nAWS_ACCESS_KEY_ID = AK2\naws_secret_access_key = s2\n\
                       aws_session_token = t2\n[broken]\naws_access_key_id = AK3\n";

    fn write(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_section_is_read_from_both_forms() {
        let dir = tempfile::tempdir().unwrap();
        let ini = write(dir.path(), "credentials", INI, 0o600);
        let toml =
            "[two]\naccess_key_id = \"AK2\"\nsecret_access_key = \"s2\"\nsession_token = \"t2\"\n";
        let toml = write(dir.path(), "credentials.toml", toml, 0o600);
        for path in [ini, toml] {
            let two = SectionCredentials::open(&path, "two").unwrap().current().unwrap();
            assert_eq!(two.key_id, "AK2");
            assert_eq!(two.secret_key, "s2");
            assert_eq!(two.token.as_deref(), Some("t2"));
        }
    }

    #[test]
    fn what_is_wrong_is_told_without_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            |path: &Path, section| SectionCredentials::open(path, section).unwrap_err().to_string();
        let good = write(dir.path(), "good", INI, 0o600);
        assert!(open(&good, "three").contains("no section [three]"));
        assert!(open(&good, "broken").contains("no aws_secret_access_key"));
        let shared = write(dir.path(), "shared", INI, 0o644);
        assert!(open(&shared, "one").contains("chmod 600"));
        assert!(open(&dir.path().join("missing"), "one").contains("missing"));
        for (name, text) in [("x.toml", "[a]\nkey = hunter2\n"), ("x", "[a]\nhunter2\n")] {
            let message = open(&write(dir.path(), name, text, 0o600), "a");
            assert!(message.contains("line 2"), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), "credentials", INI, 0o600);
        let section = SectionCredentials::open(&path, "one").unwrap();
        let next = write(dir.path(), "next", &INI.replace("AK1", "AK9"), 0o600);
        fs::rename(next, &path).unwrap();
        // As if the interval had passed.
        section.state.lock().unwrap().looked_at =
            Instant::now().checked_sub(LOOK_INTERVAL).unwrap();
        assert_eq!(section.current().unwrap().key_id, "AK9");
    }
}
