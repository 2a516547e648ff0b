//! The file that tells whether the last shutdown was clean, in which boot the store was open, and
//! which engine kept it.
//!
//! Text, so that a person can read it: `version`, `boot`, `store` (missing: `sled`), `clean`,
//! `last`, one `key=value` a line, and a final `checksum` (crc32c of the lines before it,
//! hexadecimal). Replaced as a whole.

use std::{fs, io, path::Path};

use millrace_types::{Crc32c, LogIndex};

use crate::files::{self, Access, Files};

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The machine's boot in which the store was last open.
    pub boot: String,
    /// The engine that kept the store.
    pub store: String,
    /// Whether log and store were synced and closed.
    pub clean: bool,
    /// The last index in the log, when clean.
    pub last: LogIndex,
}

const FILE: &str = "marker";
const VERSION: &str = "1";

/// The engine of programs that did not write which.
const STORE_BEFORE: &str = "sled";

impl Marker {
    /// Reads the file; `None` when it is missing or damaged, which counts as not clean.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn load(files: &dyn Files, dir: &Path) -> io::Result<Option<Self>> {
        match files.open(&dir.join(FILE), Access::Read) {
            Ok(file) => {
                let bytes = files::read_all(&*file)?;
                Ok(std::str::from_utf8(&bytes).ok().and_then(Self::parse))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file, durably.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn save(&self, files: &dyn Files, dir: &Path) -> io::Result<()> {
        let new = dir.join("marker.new");
        let file = files.open(&new, Access::Create)?;
        file.write_all_at(self.print().as_bytes(), 0)?;
        file.sync_data()?;
        files.rename(&new, &dir.join(FILE))?;
        files.sync_dir(dir)
    }

    /// Takes the file away: the next start then trusts no store. Works on a full disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn forget(files: &dyn Files, dir: &Path) -> io::Result<()> {
        match files.remove(&dir.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => files.sync_dir(dir),
        }
    }

    fn print(&self) -> String {
        let Self { boot, store, clean, last } = self;
        let last = last.0;
        let lines =
            format!("version={VERSION}\nboot={boot}\nstore={store}\nclean={clean}\nlast={last}\n");
        let checksum = Crc32c::of(lines.as_bytes()).0;
        format!("{lines}checksum={checksum:08x}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let at = text.rfind("checksum=")?;
        let (lines, checksum) = text.split_at(at);
        let checksum = checksum.strip_prefix("checksum=")?.trim_end();
        if u32::from_str_radix(checksum, 16).ok()? != Crc32c::of(lines.as_bytes()).0 {
            return None;
        }
        let value =
            |key: &str| lines.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        if value("version")? != VERSION {
            return None;
        }
        Some(Self {
            boot: value("boot")?.to_owned(),
            store: value("store").unwrap_or(STORE_BEFORE).to_owned(),
            clean: value("clean")?.parse().ok()?,
            last: LogIndex(value("last")?.parse().ok()?),
        })
    }
}

/// Names the present boot of the machine.
///
/// # Errors
/// When the kernel does not tell.
pub fn present_boot() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::MachineFiles;

    #[test]
    fn a_marker_reads_back_and_damage_counts_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Marker::load(&MachineFiles, dir.path()).unwrap(), None);
        let (boot, store) = (present_boot().unwrap(), "lsm".to_owned());
        let marker = Marker { boot, store, clean: true, last: LogIndex(12) };
        marker.save(&MachineFiles, dir.path()).unwrap();
        assert_eq!(Marker::load(&MachineFiles, dir.path()).unwrap(), Some(marker.clone()));
        let damaged = marker.print().replace("clean=true", "clean=false");
        assert_eq!(Marker::parse(&damaged), None);
        assert_eq!(Marker::parse("nonsense"), None);
        let lines = "version=1\nboot=b\nclean=true\nlast=3\n";
        let checksum = Crc32c::of(lines.as_bytes()).0;
        let older = Marker::parse(&format!("{lines}checksum={checksum:08x}\n")).unwrap();
        assert_eq!((older.store.as_str(), older.last), (STORE_BEFORE, LogIndex(3)));
    }
}
