//! Who a node is: its certificate, its key and the authority that it trusts.
//!
//! A *bundle* is one PEM file with the node's certificate, its private key and the certificate of
//! the cluster's authority, in any order of sections; mode 0600. What the certificate says is read
//! by [`PeerIdentity::from_certificate`], for ourselves as for a peer.

use std::{
    fmt, fs, io,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};

mod certificate;

pub use certificate::{CertificateError, PeerIdentity};
pub(crate) use certificate::{
    cluster_name, cluster_of_authority, node_name, of_connection, server_name,
};

/// A node's own identity. Cheap to clone. Never prints the key.
#[derive(Clone)]
pub struct Identity(Arc<Parts>);

struct Parts {
    peer: PeerIdentity,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Identity {
    /// Reads a bundle from a file that only its owner may read.
    ///
    /// # Errors
    /// [`IdentityError`] that names the file and says what to do.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let text = read_private(path)?;
        Self::from_pem(&text).map_err(|error| error.in_file(path))
    }

    /// Reads a bundle from text.
    ///
    /// # Errors
    /// [`IdentityError`] when a part is missing, or the certificate is none of a Millrace node.
    pub fn from_pem(text: &str) -> Result<Self, IdentityError> {
        let mut node = None;
        let mut authority = None;
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
            let certificate = certificate.map_err(|error| IdentityError::Pem(error.to_string()))?;
            let place = match certificate::is_authority(&certificate)? {
                true => &mut authority,
                false => &mut node,
            };
            if place.replace(certificate).is_some() {
                return Err(IdentityError::Pem("two certificates of one kind".to_owned()));
            }
        }
        let certificate = node.ok_or(IdentityError::Missing("node certificate"))?;
        let authority = authority.ok_or(IdentityError::Missing("authority certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map_err(|_| IdentityError::Missing("private key"))?;
        let PrivateKeyDer::Pkcs8(key) = key else {
            return Err(IdentityError::Pem("private key is not PKCS#8".to_owned()));
        };
        let peer = PeerIdentity::from_certificate(&certificate)?;
        if cluster_of_authority(&authority)? != peer.cluster {
            return Err(IdentityError::TwoClusters);
        }
        Ok(Self(Arc::new(Parts { peer, certificate, authority, key })))
    }

    /// What the certificate says about its holder.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.0.peer
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.0.certificate.clone()]
    }

    pub(crate) fn authority(&self) -> CertificateDer<'static> {
        self.0.authority.clone()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.0.key.clone_key())
    }

    /// The key's bytes, from which other secrets of the node are derived.
    pub(crate) fn secret(&self) -> &[u8] {
        self.0.key.secret_pkcs8_der()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.0.peer).finish()
    }
}

/// Writes a file that only its owner may read (mode 0600), whole or not at all, durably.
///
/// # Errors
/// When the directory cannot be written to.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // tempfile creates with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    fs::File::open(directory)?.sync_all()
}

/// Reads a file that only its owner may read.
pub(crate) fn read_private(path: &Path) -> Result<String, IdentityError> {
    let file_error = |source| IdentityError::File { path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(file_error)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if metadata.is_file() && mode & 0o077 != 0 {
        return Err(IdentityError::Mode { path: path.to_owned(), mode });
    }
    if metadata.size() > BUNDLE_LEN_MAX {
        return Err(IdentityError::Pem("file is too long for a bundle".to_owned()).in_file(path));
    }
    fs::read_to_string(path).map_err(file_error)
}

/// A bundle is about 3 KiB.
const BUNDLE_LEN_MAX: u64 = 1024 * 1024;

/// A bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read.
    #[error("cannot read identity file {}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others than the owner may read the private key.
    #[error(
        "identity file {} has mode {mode:04o}, so others may read the private key: chmod 600 {}",
        path.display(),
        path.display()
    )]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The text is no PEM, or not of the expected sections.
    #[error("not an identity bundle: {0}")]
    Pem(String),
    /// A section is missing.
    #[error("identity bundle has no {0}")]
    Missing(&'static str),
    /// The certificate is none of a Millrace node.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Node and authority certificate belong to different clusters.
    #[error("node certificate and authority certificate belong to different clusters")]
    TwoClusters,
    /// One of the above, in a file.
    #[error("identity file {}: {source}", path.display())]
    InFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: Box<Self>,
    },
}

impl IdentityError {
    pub(crate) fn in_file(self, path: &Path) -> Self {
        Self::InFile { path: path.to_owned(), source: Box::new(self) }
    }
}

#[cfg(test)]
mod tests;
