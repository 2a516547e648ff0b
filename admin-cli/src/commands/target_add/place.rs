//! The directory of a target that is to be added: what speaks against it, and what a person should
//! know.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use millrace_types::{ByteLen, MIB, TargetId};
use rustix::{
    fs::{Mode, OFlags, open, statvfs},
    io::Errno,
};

use super::head;
use crate::arguments::CAPACITY_MIN;

/// A directory, and what was seen of it.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// The same, whatever links lead there.
    canonical: PathBuf,
    metadata: Metadata,
    /// Names in it that no target has.
    foreign: Option<String>,
    pub(super) holds_target: bool,
    /// That target, if its id can be read.
    target: Option<TargetId>,
    /// Whether there is one of the first format, which no daemon opens.
    is_version_1: bool,
    pub(super) free: ByteLen,
}

/// What a daemon leaves to others of a file system that it has no capacity for.
const LEFT_TO_OTHERS: ByteLen = ByteLen(256 * MIB);

/// The file of a target's space.
const STORE: &str = "store";

/// What a target of the first format has instead.
const SUPERBLOCK: &str = "superblock";

/// What a new file system has.
const LOST_FOUND: &str = "lost+found";

impl Place {
    /// Looks at a directory.
    ///
    /// # Errors
    /// When it is not there, is none, or may not be read.
    pub(super) fn look(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => anyhow::bail!(
                "{shown} is not there: make the directory, and mount its disk on it, first"
            ),
            Err(error) => return Err(error).with_context(|| format!("cannot use {shown}")),
        };
        ensure!(
            metadata.is_dir(),
            "{shown} is no directory; a block device or an image file is named in the settings by \
             hand, in a [[target]] table"
        );
        let canonical = fs::canonicalize(path).with_context(|| format!("cannot use {shown}"))?;
        let (mut names, mut holds_target, mut is_version_1) = (Vec::new(), false, false);
        for entry in fs::read_dir(path).with_context(|| format!("cannot read {shown}"))? {
            let name = entry.with_context(|| format!("cannot read {shown}"))?.file_name();
            holds_target |= name == STORE;
            is_version_1 |= name == SUPERBLOCK;
            if name != LOST_FOUND {
                names.push(name.to_string_lossy().into_owned());
            }
        }
        names.sort();
        // Where there is a space, a daemon looks at nothing else.
        is_version_1 &= !holds_target;
        let foreign = names.into_iter().next().filter(|_| !holds_target);
        let target = head::target_in(&path.join(STORE));
        let space = statvfs(path).with_context(|| format!("cannot look at {shown}"))?;
        let free = ByteLen(space.f_bavail.saturating_mul(space.f_frsize));
        let path = path.to_owned();
        Ok(Self { path, canonical, metadata, foreign, holds_target, target, is_version_1, free })
    }

    /// Whether this is where settings say that a target lies.
    pub(super) fn is_at(&self, other: &Path) -> bool {
        other == self.path || fs::canonicalize(other).is_ok_and(|other| other == self.canonical)
    }

    /// Refuses what cannot become a target, or is another one than the expected.
    ///
    /// # Errors
    /// When there is something else in it, or it has no room for one, or the daemon would refuse it
    /// for its id.
    pub(super) fn check(
        &self,
        capacity: Option<ByteLen>,
        expected: Option<TargetId>,
    ) -> anyhow::Result<()> {
        let shown = self.path.display();
        ensure!(
            !self.is_version_1,
            "{shown}: this target has format version 1 of a development version; copy its data out \
             with that version, or empty the directory to begin with a blank target"
        );
        if let Some(name) = &self.foreign {
            anyhow::bail!(
                "{shown} is not empty, and holds no target: {name} is there. Is its disk mounted, \
                 and the right one?"
            );
        }
        if self.holds_target {
            if let (Some(found), Some(expected)) = (self.target, expected) {
                ensure!(found == expected, "{shown} holds target {found}, not {expected}");
            }
            return Ok(());
        }
        ensure!(
            expected.is_none(),
            "{shown} has no target, and with an id the daemon makes none there: mount the disk \
             that holds it, or leave --id out to begin with a blank target, whose id `millrace \
             target list` shows after the restart"
        );
        let needed = capacity.unwrap_or(ByteLen(CAPACITY_MIN.0 + LEFT_TO_OTHERS.0));
        ensure!(
            self.free >= needed,
            "{shown} has {} free, and a target there needs {needed}",
            self.free
        );
        Ok(())
    }

    /// What a person should know before the target is used, which must have the id that is
    /// `expected`; `others` are those that the settings name already.
    pub(super) fn warnings(&self, others: &[PathBuf], expected: Option<TargetId>) -> Vec<String> {
        let others = others.iter().filter_map(|other| fs::metadata(other).ok());
        let seen = Seen {
            own: about(&self.metadata),
            others: others.map(|other| about(&other)).collect(),
            root: fs::metadata("/").ok().map(|root| root.dev()),
            is_direct: takes_direct_io(&self.path),
            unread: expected.filter(|_| self.target.is_none()),
        };
        let path = self.path.display();
        seen.warnings().into_iter().map(|words| format!("{path} {words}")).collect()
    }
}

/// What matters of a directory.
#[derive(Debug, Clone, Copy)]
struct About {
    device: u64,
    uid: u32,
    mode: u32,
}

fn about(metadata: &Metadata) -> About {
    About { device: metadata.dev(), uid: metadata.uid(), mode: metadata.mode() }
}

/// What warnings are made of.
#[derive(Debug)]
struct Seen {
    own: About,
    others: Vec<About>,
    /// The device of the root file system.
    root: Option<u64>,
    /// Whether files there are read and written past the page cache; none where nobody can tell.
    is_direct: Option<bool>,
    /// The id that is expected of a target whose own cannot be read.
    unread: Option<TargetId>,
}

impl Seen {
    fn warnings(&self) -> Vec<String> {
        let Self { own, others, root, is_direct, unread } = self;
        let mut warnings = Vec::new();
        let on_root = |device: u64| *root == Some(device);
        // Who has all targets there means it.
        let means_it = !others.is_empty() && others.iter().all(|other| on_root(other.device));
        if on_root(own.device) && !means_it {
            warnings.push(
                "lies on the root file system: is its disk mounted? A target is made where the \
                 directory leads when the daemon starts"
                    .to_owned(),
            );
        } else if others.iter().any(|other| other.device == own.device) {
            warnings.push(
                "shares its file system with another target: without a capacity each counts all \
                 that is free as its own"
                    .to_owned(),
            );
        }
        if *is_direct == Some(false) {
            warnings.push(
                "takes no direct I/O (O_DIRECT): the daemon works through the page cache there, \
                 which costs memory and speed, and a disk that loses writes is noticed later"
                    .to_owned(),
            );
        }
        if let Some(other) = others.iter().find(|other| other.uid != own.uid) {
            warnings.push(format!(
                "belongs to user {}, and another target to user {}: the daemon must be able to \
                 write there",
                own.uid, other.uid
            ));
        }
        if own.mode & 0o022 != 0 {
            warnings.push(
                "may be written by others than its owner: chmod 700 keeps them out".to_owned(),
            );
        }
        if let Some(expected) = unread {
            warnings.push(format!(
                "does not tell which target it holds: if that is not {expected}, no target of this \
                 host is served after the restart"
            ));
        }
        warnings
    }
}

/// Whether a file there can be opened for direct I/O; none where that cannot be tried.
fn takes_direct_io(directory: &Path) -> Option<bool> {
    let file = tempfile::Builder::new().prefix(".millrace-").tempfile_in(directory).ok()?;
    match open(file.path(), OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Some(true),
        Err(Errno::INVAL) => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_no_target_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let missing = Place::look(&path.join("missing")).unwrap_err().to_string();
        assert!(missing.contains("is not there"), "{missing}");
        fs::write(path.join("file"), "").unwrap();
        let file = Place::look(&path.join("file")).unwrap_err().to_string();
        assert!(file.contains("no directory") && file.contains("[[target]]"), "{file}");
        let foreign = Place::look(path).unwrap().check(None, None).unwrap_err().to_string();
        assert!(foreign.contains("not empty") && foreign.contains("file is there"), "{foreign}");
        fs::remove_file(path.join("file")).unwrap();

        fs::create_dir(path.join(LOST_FOUND)).unwrap();
        let empty = Place::look(path).unwrap();
        assert!(!empty.holds_target);
        empty.check(Some(ByteLen(1)), None).unwrap();
        let full = empty.check(Some(ByteLen(u64::MAX)), None).unwrap_err().to_string();
        assert!(full.contains("free"), "{full}");
        fs::write(path.join(STORE), "").unwrap();
        let target = Place::look(path).unwrap();
        assert!(target.holds_target);
        target.check(Some(ByteLen(u64::MAX)), None).unwrap();
    }

    #[test]
    fn an_id_is_that_of_a_target_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let (path, id) = (directory.path(), TargetId([7; 8]));
        let refused = |expected| {
            let place = Place::look(path).unwrap();
            place.check(Some(ByteLen(1)), Some(expected)).unwrap_err().to_string()
        };
        assert!(refused(id).contains("has no target"), "{}", refused(id));
        let is_unread = |place: &Place| {
            let warnings = place.warnings(&[], Some(id));
            warnings.iter().any(|warning| warning.contains("no target of this host"))
        };
        fs::write(path.join(STORE), "").unwrap();
        let unread = Place::look(path).unwrap();
        unread.check(None, Some(id)).unwrap();
        assert!(is_unread(&unread));

        fs::write(path.join(STORE), head::tests::head(id)).unwrap();
        let known = Place::look(path).unwrap();
        known.check(None, Some(id)).unwrap();
        assert!(!is_unread(&known));
        let other = refused(TargetId([8; 8]));
        assert!(other.contains(&format!("holds target {id}")), "{other}");
    }

    #[test]
    fn a_target_of_the_first_format_is_refused_as_the_daemon_does_it() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["data", "journal", SUPERBLOCK] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let refused = Place::look(directory.path()).unwrap().check(None, None).unwrap_err();
        assert!(refused.to_string().contains("format version 1"), "{refused}");
        fs::write(directory.path().join(STORE), "").unwrap();
        Place::look(directory.path()).unwrap().check(None, None).unwrap();
    }

    #[test]
    fn a_directory_is_known_by_each_of_its_names() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, link) = (directory.path().join("disk"), directory.path().join("link"));
        fs::create_dir(&disk).unwrap();
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        let place = Place::look(&link).unwrap();
        assert!(place.is_at(&disk) && place.is_at(&link));
        assert!(!place.is_at(directory.path()) && !place.is_at(Path::new("/nowhere")));
    }

    #[test]
    fn a_person_is_told_what_is_odd() {
        const SOUND: About = About { device: 7, uid: 0, mode: 0o40_755 };
        let seen = |own, others: &[About], is_direct| {
            let (others, root) = (others.to_vec(), Some(1));
            Seen { own, others, root, is_direct, unread: None }.warnings()
        };
        let other = About { device: 8, ..SOUND };
        assert!(seen(SOUND, &[other], Some(true)).is_empty());
        assert!(seen(SOUND, &[], None).is_empty());
        let on_root = About { device: 1, ..SOUND };
        for (own, others, is_direct, word) in [
            (on_root, vec![other], Some(true), "root file system"),
            (on_root, vec![], Some(true), "root file system"),
            (on_root, vec![on_root], Some(true), "shares"),
            (SOUND, vec![SOUND], Some(true), "shares"),
            (SOUND, vec![other], Some(false), "O_DIRECT"),
            (SOUND, vec![About { uid: 9, ..other }], None, "user 9"),
            (About { mode: 0o40_775, ..SOUND }, vec![], None, "chmod 700"),
        ] {
            let told = seen(own, &others, is_direct);
            assert!(told.len() == 1 && told[0].contains(word), "{word}: {told:?}");
        }
    }
}
