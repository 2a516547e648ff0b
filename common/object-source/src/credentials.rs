//! Named credentials in a file that only its owner can read, read again when it has changed.
//!
//! The file is either TOML (its name ends in `.toml`) or in the form of `~/.aws/credentials`:
//!
//! ```text
//! [training]
//! aws_access_key_id = AKIA...
//! aws_secret_access_key = ...
//! aws_session_token = ...          (if temporary)
//!
//! [archive]
//! google_service_account = /etc/millrace/archive.json
//!
//! [results]
//! azure_storage_account_name = results
//! azure_storage_account_key = ...  (or azure_storage_sas_token = ...)
//! ```

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use object_store::CredentialProvider;

use crate::{Error, Settings};

/// The credentials of one section, followed through changes of the file, and of the file that the
/// section may name.
pub(crate) struct Section<C> {
    path: PathBuf,
    section: String,
    make: Make<C>,
    state: Mutex<State<C>>,
}

/// Makes credentials of the values of a section. Runs where it may block for a file.
type Make<C> = Box<dyn Fn(&Values<'_>) -> Result<C, Error> + Send + Sync>;

struct State<C> {
    looked_at: Instant,
    stamps: Vec<(PathBuf, Stamp)>,
    credential: Arc<C>,
    /// When it was first seen that files are being written in place, and as what they were seen
    /// last.
    rewritten: Option<(Instant, Vec<Stamp>)>,
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

/// A file that is written in place is half of one for a moment: it is read when two looks found it
/// the same, or after this time.
const REWRITE_MAX: Duration = Duration::from_secs(10);

/// Larger files are refused: nobody has this many credentials.
const FILE_LEN_MAX: u64 = 1024 * 1024;

impl<C> Section<C> {
    /// Reads a section for the first time.
    ///
    /// # Errors
    /// [`Error::Denied`] with a sentence: no such file or section, a file that others can read, or
    /// keys missing in it.
    pub(crate) fn open(
        settings: &Settings,
        section: &str,
        make: impl Fn(&Values<'_>) -> Result<C, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let path = settings.credentials_file.as_deref().ok_or_else(|| Error::Denied {
            message: format!(
                "credentials {section:?} are asked for, but this host has no credentials \
                 file: name one in the daemon's setting [buckets] credentials_file"
            ),
        })?;
        let (stamps, credential) = load(path, section, &make)?;
        let (looked_at, credential) = (Instant::now(), Arc::new(credential));
        let state = State { looked_at, stamps, credential, rewritten: None };
        let (path, section) = (path.to_owned(), section.to_owned());
        Ok(Self { path, section, make: Box::new(make), state: Mutex::new(state) })
    }

    /// The credentials as the file says now.
    pub(crate) fn current(&self) -> Result<Arc<C>, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked_at.elapsed() >= LOOK_INTERVAL {
            if state.is_to_be_read() {
                let (stamps, credential) = load(&self.path, &self.section, &self.make)?;
                state.stamps = stamps;
                state.credential = Arc::new(credential);
                state.rewritten = None;
                tracing::info!(file = %self.path.display(), section = %self.section,
                    "credentials file changed: read again");
            }
            state.looked_at = Instant::now();
        }
        Ok(Arc::clone(&state.credential))
    }
}

/// Whether nobody has written a file for as long as is waited at most.
fn is_settled(stamp: &Stamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let limit = now.saturating_sub(REWRITE_MAX).as_secs();
    u64::try_from(stamp.modified.0).is_ok_and(|modified| modified < limit)
}

impl<C> State<C> {
    /// Looks whether the files are others than those that were read, and nobody seems to be writing
    /// them. One that is gone is: that, as its mode, is for the operator to decide.
    fn is_to_be_read(&mut self) -> bool {
        let found = self.stamps.iter().map(|(path, _)| fs::metadata(path).ok());
        let found = found.map(|found| found.map(|found| stamp_of(&found)));
        let Some(found) = found.collect::<Option<Vec<Stamp>>>() else { return true };
        let known: Vec<Stamp> = self.stamps.iter().map(|(_, stamp)| *stamp).collect();
        if found == known {
            self.rewritten = None;
            return false;
        }
        // What takes the place of another file is whole.
        let in_place = known.iter().zip(&found).all(|(known, found)| known.inode == found.inode);
        let is_still = self
            .rewritten
            .as_ref()
            .is_some_and(|(since, last)| *last == found || since.elapsed() >= REWRITE_MAX);
        // Looks come with requests: of a file that was rewritten hours ago the first is enough.
        let settled = |(known, found): (&Stamp, &Stamp)| known == found || is_settled(found);
        if is_still || !in_place || known.iter().zip(&found).all(settled) {
            return true;
        }
        let since = self.rewritten.take().map_or_else(Instant::now, |(since, _)| since);
        self.rewritten = Some((since, found));
        false
    }
}

/// Says which section it is, and nothing of what is in it.
impl<C> fmt::Debug for Section<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Section");
        text.field("path", &self.path).field("section", &self.section).finish_non_exhaustive()
    }
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync + 'static> CredentialProvider for Section<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        self.current().map_err(|error| object_store::Error::Unauthenticated {
            path: self.section.clone(),
            source: Box::new(error),
        })
    }
}

/// The keys and values of a section.
pub(crate) struct Values<'a> {
    file: &'a Path,
    section: &'a str,
    values: &'a BTreeMap<String, String>,
    /// Files that the section names.
    named: Mutex<Vec<(PathBuf, Stamp)>>,
}

impl Values<'_> {
    /// A value, checked: it travels in headers; other bytes would fail there without saying where
    /// they came from.
    ///
    /// # Errors
    /// [`Error::Denied`] when there are such bytes in it.
    pub(crate) fn value(&self, name: &str) -> Result<Option<String>, Error> {
        let sound = |text: &str| text.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
        match self.values.get(name) {
            Some(text) if !sound(text) => {
                Err(self.wrong(&format!("has a value with unexpected characters: {name}")))
            }
            other => Ok(other.cloned()),
        }
    }

    /// A value that must be there.
    ///
    /// # Errors
    /// [`Error::Denied`] when it is not.
    pub(crate) fn needed(&self, name: &str) -> Result<String, Error> {
        self.value(name)?.ok_or_else(|| self.wrong(&format!("has no {name}")))
    }

    /// The text of a file that the section names under `name`. It is watched along.
    ///
    /// # Errors
    /// [`Error::Denied`] when it is not named, cannot be read, or others can read it too.
    pub(crate) fn file(&self, name: &str) -> Result<(PathBuf, String), Error> {
        let told = self.values.get(name);
        let path = PathBuf::from(told.ok_or_else(|| self.wrong(&format!("has no {name}")))?);
        let (stamp, text) = read_private(&path)?;
        self.named.lock().unwrap_or_else(PoisonError::into_inner).push((path.clone(), stamp));
        Ok((path, text))
    }

    /// What is wrong with the section, in words that go on behind its name.
    pub(crate) fn wrong(&self, why: &str) -> Error {
        denied(self.file, &format!("section [{}] {why}", self.section))
    }
}

fn denied(path: &Path, why: &str) -> Error {
    Error::Denied { message: format!("credentials file {}: {why}", path.display()) }
}

fn stamp_of(metadata: &fs::Metadata) -> Stamp {
    Stamp {
        inode: metadata.ino(),
        len: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// Reads a file that only its owner can use.
fn read_private(path: &Path) -> Result<(Stamp, String), Error> {
    let fail = |error: std::io::Error| denied(path, &error.to_string());
    let mut file = fs::File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        let why = format!("others than its owner can use it (mode {mode:03o}): run chmod 600");
        return Err(denied(path, &why));
    }
    if metadata.len() > FILE_LEN_MAX {
        return Err(denied(path, "larger than 1 MiB"));
    }
    let mut text = String::new();
    file.by_ref().take(FILE_LEN_MAX).read_to_string(&mut text).map_err(fail)?;
    Ok((stamp_of(&metadata), text))
}

fn load<C>(
    path: &Path,
    section: &str,
    make: impl Fn(&Values<'_>) -> Result<C, Error>,
) -> Result<(Vec<(PathBuf, Stamp)>, C), Error> {
    let (stamp, text) = read_private(path)?;
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let sections = if is_toml { parse_toml(&text) } else { parse_ini(&text) };
    let sections = sections.map_err(|why| denied(path, &why))?;
    let missing = || denied(path, &format!("there is no section [{section}]"));
    let values = sections.get(section).ok_or_else(missing)?;
    let named = Mutex::default();
    let values = Values { file: path, section, values, named };
    let credential = make(&values)?;
    let mut stamps = values.named.into_inner().unwrap_or_else(PoisonError::into_inner);
    stamps.push((path.to_owned(), stamp));
    Ok((stamps, credential))
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

    use object_store::aws::AwsCredential;

    use super::*;
    use crate::s3::keys;

    const INI: &str = "# keys\n[one]\naws_access_key_id = AK1\naws_secret_access_key=s1==\n\n\
                       [two]\nAWS_ACCESS_KEY_ID = AK2\naws_secret_access_key = s2\n\
                       aws_session_token = t2\n[broken]\naws_access_key_id = AK3\n";

    fn write(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn open(path: &Path, section: &str) -> Result<Section<AwsCredential>, Error> {
        let file = Some(path.to_owned());
        let settings = Settings { credentials_file: file, ..Settings::default() };
        Section::open(&settings, section, keys::from_values)
    }

    #[test]
    fn a_section_is_read_from_both_forms() {
        let dir = tempfile::tempdir().unwrap();
        let ini = write(dir.path(), "credentials", INI, 0o600);
        let toml =
            "[two]\naccess_key_id = \"AK2\"\nsecret_access_key = \"s2\"\nsession_token = \"t2\"\n";
        let toml = write(dir.path(), "credentials.toml", toml, 0o600);
        for path in [ini, toml] {
            let two = open(&path, "two").unwrap().current().unwrap();
            assert_eq!(two.key_id, "AK2");
            assert_eq!(two.secret_key, "s2");
            assert_eq!(two.token.as_deref(), Some("t2"));
        }
    }

    #[test]
    fn what_is_wrong_is_told_without_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path, section| open(path, section).unwrap_err().to_string();
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
        let section = open(&path, "one").unwrap();
        let next = write(dir.path(), "next", &INI.replace("AK1", "AK9"), 0o600);
        fs::rename(next, &path).unwrap();
        assert_eq!(look(&section).unwrap().key_id, "AK9");
        fs::remove_file(&path).unwrap();
        assert!(look(&section).is_err(), "it is gone, and with it the keys");
    }

    /// The credentials as if the interval had passed.
    fn look(section: &Section<AwsCredential>) -> Result<Arc<AwsCredential>, Error> {
        section.state.lock().unwrap().looked_at =
            Instant::now().checked_sub(LOOK_INTERVAL).unwrap();
        section.current()
    }

    #[test]
    fn a_file_that_is_written_in_place_is_read_once_it_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), "credentials", INI, 0o600);
        let section = open(&path, "one").unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(look(&section).unwrap().key_id, "AK1");
        fs::write(&path, &INI.replace("AK1", "AK99")[..20]).unwrap();
        assert_eq!(look(&section).unwrap().key_id, "AK1");
        fs::write(&path, INI.replace("AK1", "AK99")).unwrap();
        assert_eq!(look(&section).unwrap().key_id, "AK1");
        assert_eq!(look(&section).unwrap().key_id, "AK99");
        // What stays wrong is wrong.
        fs::write(&path, "[one]\n").unwrap();
        assert_eq!(look(&section).unwrap().key_id, "AK99");
        for _ in 0..2 {
            assert!(look(&section).is_err());
        }
    }

    #[test]
    fn a_file_that_was_written_in_place_long_ago_is_read_at_the_first_look() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), "credentials", INI, 0o600);
        let section = open(&path, "one").unwrap();
        fs::write(&path, INI.replace("AK1", "AK9")).unwrap();
        let minute_ago = SystemTime::now().checked_sub(Duration::from_secs(60)).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(minute_ago).unwrap();
        assert_eq!(look(&section).unwrap().key_id, "AK9");
    }
}
