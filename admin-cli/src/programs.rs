//! Where the daemons' executables are.

use std::path::PathBuf;

use anyhow::bail;

/// The metadata server.
pub(crate) const METADATA: &str = "millrace-metadata";
/// The storage target daemon.
pub(crate) const TARGET: &str = "millrace-target";
/// The FUSE client.
pub(crate) const FUSE: &str = "millrace-fuse";

/// Finds `name` beside this executable, then on PATH.
///
/// # Errors
/// When it is in neither place; the message says where it was looked for.
pub(crate) fn find(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    let beside = own.as_deref().and_then(|path| path.parent());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = beside
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path).filter(|place| place.is_absolute()));
    for place in places {
        let candidate = place.join(name);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    bail!(
        "{name} is neither beside {} nor on PATH; install it or build it (`cargo build`)",
        own.map_or_else(|| "this program".to_owned(), |path| path.display().to_string())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_nowhere_is_named() {
        let error = find("millrace-nothing").unwrap_err().to_string();
        assert!(error.contains("millrace-nothing"), "{error}");
        assert!(find("sh").unwrap().ends_with("sh"));
    }
}
