//! Directories in which a mount makes files without asking the metadata server.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

/// Makes files in a new directory until the mount makes them by itself: it uses ids then that it
/// was given before the server gave a newer one to a directory.
///
/// # Errors
/// As [`delegated_within`].
pub fn delegated(parent: &Path, name: &str) -> Result<PathBuf> {
    delegated_within(parent, name, 10_000)
}

/// The same with so many files at most.
///
/// # Errors
/// That the server was asked for each of them, and what the file system says.
pub fn delegated_within(parent: &Path, name: &str, files: u32) -> Result<PathBuf> {
    let directory = parent.join(name);
    fs::create_dir(&directory)?;
    let mut newest = 0;
    for number in 0..files {
        let file = directory.join(format!("before-{number}"));
        fs::write(&file, "x")?;
        if fs::metadata(&file)?.ino() < newest {
            return Ok(directory);
        }
        let asked = parent.join(format!("{name}-{number}"));
        fs::create_dir(&asked)?;
        newest = fs::metadata(&asked)?.ino();
        fs::remove_dir(&asked)?;
    }
    bail!("the server is asked for every file")
}
