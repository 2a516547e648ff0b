//! The certificate authority of a cluster as files of one directory.
//!
//! `D/authority.pem` holds its certificate and private key, `D/admin.pem` the first operator's
//! identity; both are readable by their owner alone and never overwritten.

use std::{
    fs::Permissions,
    io::{ErrorKind, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use millrace_protocol::session::Role;
use millrace_runtime::random::Random;
use millrace_transport::{Authority, authority::Grant};

/// All that a role can have, for a new node.
pub(crate) fn whole(role: Role) -> Grant {
    Grant { role, host: Random::system().host_id(), subtree: None, squash_root: false }
}

/// Makes the authority of a new cluster in `dir`, which is made if missing.
///
/// # Errors
/// When the directory holds one already, or cannot be written to.
pub(crate) fn create(dir: &Path) -> anyhow::Result<Authority> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let path = file(dir);
    if path.exists() {
        bail!(
            "{} holds the authority of a cluster already; use another directory, or go on with \
             `millrace cluster invite --dir {0}`",
            dir.display()
        );
    }
    let authority = Authority::create(Random::system().cluster_id())?;
    authority.save(&path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(authority)
}

/// Reads the authority of `dir`; nothing when there is none.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Option<Authority>> {
    let path = file(dir);
    if !path.exists() {
        return Ok(None);
    }
    let authority = Authority::load(&path).context("cannot use the cluster's authority")?;
    Ok(Some(authority))
}

/// Reads the authority of a directory that must have one.
///
/// # Errors
/// As [`read`], and when there is none.
pub(crate) fn existing(dir: &Path) -> anyhow::Result<Authority> {
    match read(dir)? {
        Some(authority) => Ok(authority),
        None => {
            bail!("{} holds no cluster; `millrace cluster init --dir {0}` makes one", dir.display())
        }
    }
}

/// Issues the bundle of a new node and writes it to `path` with mode 0600.
///
/// # Errors
/// When there is a file already, or it cannot be written.
pub(crate) fn issue(authority: &Authority, grant: &Grant, path: &Path) -> anyhow::Result<()> {
    let bundle = authority.issue(grant)?;
    match write_secret(path, bundle.as_bytes()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
            "{} exists already and is not overwritten: it may be the identity of a node",
            path.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
    }
}

/// The operator's identity in `dir`.
pub(crate) fn admin_file(dir: &Path) -> PathBuf {
    dir.join("admin.pem")
}

/// The authority in `dir`.
pub(crate) fn file(dir: &Path) -> PathBuf {
    dir.join("authority.pem")
}

/// Writes a new file that its owner alone can read. It appears as a whole or not at all.
fn write_secret(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(parent)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use millrace_transport::Identity;

    use super::*;

    #[test]
    fn an_invited_node_belongs_to_the_cluster_and_its_file_to_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let made = create(directory.path()).unwrap();
        let authority = existing(directory.path()).unwrap();
        assert_eq!(authority.cluster(), made.cluster());
        let path = directory.path().join("gpu.pem");
        let grant =
            Grant { subtree: Some(b"/train".to_vec()), squash_root: true, ..whole(Role::Client) };
        issue(&authority, &grant, &path).unwrap();
        let identity = Identity::load(&path).unwrap();
        assert_eq!(identity.peer().cluster, made.cluster());
        assert_eq!(identity.peer().host, grant.host);
        assert_eq!(identity.peer().subtree.as_deref(), Some(&b"/train"[..]));
        assert!(identity.peer().squash_root);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn nothing_is_overwritten_and_the_message_says_how_to_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let missing = existing(directory.path()).unwrap_err().to_string();
        assert!(missing.contains("cluster init"), "{missing}");
        let authority = create(directory.path()).unwrap();
        let again = create(directory.path()).unwrap_err().to_string();
        assert!(again.contains("cluster invite"), "{again}");
        let path = directory.path().join("admin.pem");
        std::fs::write(&path, "precious").unwrap();
        assert!(issue(&authority, &whole(Role::Admin), &path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
