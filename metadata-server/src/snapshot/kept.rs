//! The snapshots that there are: one file each, named by its index. The two newest are kept whose
//! heads are sound, and whatever is newer than the older of them.

use std::{
    io,
    path::{Path, PathBuf},
};

use millrace_types::{ClusterId, LogIndex};

use super::{
    format::{Decoder, Flaw},
    load::Source,
};
use crate::files::{Access, Files};

/// How many are kept: the older one is for the case that the newer cannot be read.
pub const KEPT: usize = 2;

/// The end of a name that does not count: the file is being written, or was when a stop came.
pub(super) const NEW_SUFFIX: &str = ".new";

const SUFFIX: &str = ".snapshot";
const DAMAGED_SUFFIX: &str = ".damaged";

/// The file of the snapshot of `index`: its index in 20 digits, so that names sort as indexes do.
#[must_use]
pub fn path(dir: &Path, index: LogIndex) -> PathBuf {
    dir.join(format!("{:020}{SUFFIX}", index.0))
}

/// The indexes of the snapshots in `dir`, the newest first. Whether they are sound shows when they
/// are read.
///
/// # Errors
/// When the directory cannot be read; one that is missing is empty.
pub fn list(files: &dyn Files, dir: &Path) -> io::Result<Vec<LogIndex>> {
    let names = names(files, dir)?;
    let digits = names.iter().filter_map(|name| name.strip_suffix(SUFFIX));
    let mut found: Vec<_> = digits.filter_map(|digits| digits.parse().ok().map(LogIndex)).collect();
    found.sort();
    found.reverse();
    Ok(found)
}

/// Bytes of the snapshot of `index`.
///
/// # Errors
/// When the disk fails.
pub fn size(files: &dyn Files, dir: &Path, index: LogIndex) -> io::Result<u64> {
    files.open(&path(dir, index), Access::Read)?.size()
}

/// The newest index that a snapshot shows to have been synced: one that has its name, and whose
/// head is sound. Of one that the disk cannot read the name alone counts: it got that when the log
/// was synced up to there, so that a log which ends before it has lost something. What it holds
/// comes from the snapshot before it and the log, where somebody needs it.
///
/// # Errors
/// When the directory cannot be read.
pub fn newest_synced(files: &dyn Files, dir: &Path, cluster: ClusterId) -> io::Result<LogIndex> {
    for index in list(files, dir)? {
        match head(files, dir, index) {
            Ok(of) if of == cluster => return Ok(index),
            Ok(_) => {}
            Err(Flaw::Unreadable(error)) => {
                let path = path(dir, index);
                tracing::warn!(path = %path.display(), %error, "the disk cannot read a snapshot: \
                    the start goes on without it; look at the disk, and make a backup");
                return Ok(index);
            }
            // It is reported when somebody needs what is in it.
            Err(_) => {}
        }
    }
    Ok(LogIndex(0))
}

fn head(files: &dyn Files, dir: &Path, index: LogIndex) -> Result<ClusterId, Flaw> {
    let decoder = Decoder::begin(Source::open(files, &path(dir, index))?)?;
    if decoder.index() == index {
        Ok(decoder.cluster())
    } else {
        Err(Flaw::OtherIndex(decoder.index()))
    }
}

/// The index up to which the log is not needed any more: that of the older of two snapshots. One
/// whose head cannot be read, or is damaged, is none of them: it would serve nobody.
///
/// # Errors
/// When the directory cannot be read.
pub fn older(files: &dyn Files, dir: &Path) -> io::Result<Option<LogIndex>> {
    let found = list(files, dir)?.into_iter();
    Ok(found.filter(|index| head(files, dir, *index).is_ok()).nth(KEPT - 1))
}

/// Removes those below the older of two.
///
/// # Errors
/// When the disk fails.
pub fn remove_old(files: &dyn Files, dir: &Path) -> io::Result<()> {
    let Some(older) = older(files, dir)? else { return Ok(()) };
    for index in list(files, dir)?.into_iter().filter(|index| *index < older) {
        files.remove(&path(dir, index))?;
    }
    Ok(())
}

/// Removes what a stop in the middle of a snapshot has left.
///
/// # Errors
/// When the disk fails.
pub fn remove_unfinished(files: &dyn Files, dir: &Path) -> io::Result<()> {
    for name in names(files, dir)?.iter().filter(|name| name.ends_with(NEW_SUFFIX)) {
        files.remove(&dir.join(name))?;
    }
    Ok(())
}

/// Takes a damaged snapshot out of those that count; the file stays, for whoever wants to look at
/// it, until the next damaged one.
///
/// # Errors
/// When the disk fails.
pub fn set_aside(files: &dyn Files, dir: &Path, index: LogIndex) -> io::Result<()> {
    for name in names(files, dir)?.iter().filter(|name| name.ends_with(DAMAGED_SUFFIX)) {
        files.remove(&dir.join(name))?;
    }
    let path = path(dir, index);
    let mut aside = path.clone().into_os_string();
    aside.push(DAMAGED_SUFFIX);
    files.rename(&path, Path::new(&aside))?;
    files.sync_dir(dir)
}

fn names(files: &dyn Files, dir: &Path) -> io::Result<Vec<String>> {
    match files.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}
