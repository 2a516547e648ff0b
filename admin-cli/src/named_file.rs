//! The place of a file that the operator names for a result. Nothing but a regular file is ever
//! replaced: a rename would put one in the place of a device, and take it away from everybody.

use std::{io::ErrorKind, path::Path};

use anyhow::{Context as _, ensure};

/// Whether a regular file is there.
///
/// A symbolic link is refused, too, whatever it leads to. To replace it would take away the link
/// and leave the file that was meant; to follow it would let the link's owner choose what a command
/// of root's replaces.
///
/// # Errors
/// When something else is there, or nobody can tell.
pub(crate) fn is_there(file: &Path) -> anyhow::Result<bool> {
    let kind = match file.symlink_metadata() {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("cannot use {}", file.display())),
    };
    ensure!(
        !kind.is_symlink(),
        "{} is a symbolic link, which is not replaced; name the file that it leads to",
        file.display()
    );
    ensure!(kind.is_file(), "{} is no regular file, and is not replaced", file.display());
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_regular_file_or_nothing_may_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        assert!(!is_there(&file).unwrap());
        std::fs::write(&file, "one").unwrap();
        assert!(is_there(&file).unwrap());
        let (link, dangling) = (directory.path().join("link"), directory.path().join("dangling"));
        symlink(&file, &link).unwrap();
        symlink("nowhere", &dangling).unwrap();
        for (other, word) in [
            (Path::new("/dev/null"), "no regular file"),
            (directory.path(), "no regular file"),
            (link.as_path(), "name the file"),
            (dangling.as_path(), "name the file"),
        ] {
            let refused = is_there(other).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
        assert!(is_there(&file.join("below")).is_err());
    }
}
