//! The cluster's certificate authority: made once, kept by the operator, used to invite nodes.
//!
//! No daemon needs it. Its file holds the authority's certificate and key in PEM, mode 0600. Keys
//! are ECDSA P-256.

use std::{
    fmt,
    path::Path,
    time::{Duration, SystemTime},
};

use millrace_protocol::session::Role;
use millrace_types::{ClusterId, HostId};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use crate::identity::{
    IdentityError, cluster_name, cluster_of_authority, node_name, read_private, server_name,
    write_private,
};

/// What a node's certificate will say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// What the node may be.
    pub role: Role,
    /// Its id; drawn at random for a new node.
    pub host: HostId,
    /// For clients: the directory that it may see, as an absolute path in the file system.
    pub subtree: Option<Vec<u8>>,
    /// For clients: whether root there counts as nobody.
    pub squash_root: bool,
}

/// The authority of one cluster. Never prints its key.
pub struct Authority {
    cluster: ClusterId,
    certificate_pem: String,
    key: KeyPair,
}

impl Authority {
    /// Makes the authority of a new cluster.
    ///
    /// # Errors
    /// [`AuthorityError::Making`] when the cryptographic library fails.
    pub fn create(cluster: ClusterId) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = valid_from(SystemTime::now())?;
        params.distinguished_name.push(DnType::CommonName, format!("Millrace cluster {cluster}"));
        params.subject_alt_names = vec![SanType::URI(cluster_name(cluster).try_into()?)];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(Self { cluster, certificate_pem: certificate.pem(), key })
    }

    /// Reads what [`Self::save`] wrote.
    ///
    /// # Errors
    /// [`AuthorityError`] when the file cannot be read, may be read by others, or is no authority.
    pub fn load(path: &Path) -> Result<Self, AuthorityError> {
        let text = read_private(path)?;
        let pem = |error: String| AuthorityError::File(IdentityError::Pem(error).in_file(path));
        // rcgen's own reader takes the first block, whatever it is; ours is the certificate.
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| pem(error.to_string()))
            .and_then(|key| KeyPair::try_from(&key).map_err(|error| pem(error.to_string())))?;
        let certificate = CertificateDer::from_pem_slice(text.as_bytes())
            .map_err(|error| pem(error.to_string()))?;
        let cluster = cluster_of_authority(&certificate)
            .map_err(|error| AuthorityError::File(IdentityError::from(error).in_file(path)))?;
        let begin = text.find(BEGIN).ok_or_else(|| pem("no certificate".to_owned()))?;
        let end = text.find(END).ok_or_else(|| pem("no certificate".to_owned()))? + END.len();
        let certificate_pem =
            text.get(begin..end).ok_or_else(|| pem("no certificate".to_owned()))?;
        Ok(Self { cluster, certificate_pem: format!("{certificate_pem}\n"), key })
    }

    /// Writes certificate and key to a file that only its owner may read.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let text = self.certificate_pem.clone() + &self.key.serialize_pem();
        write_private(path, &text)
    }

    /// Which cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Makes a key and a certificate for a node and returns its bundle: what
    /// [`Identity::from_pem`](crate::Identity::from_pem) reads.
    ///
    /// # Errors
    /// [`AuthorityError::Making`] when the cryptographic library fails.
    pub fn issue(&self, grant: &Grant) -> Result<String, AuthorityError> {
        self.issue_at(grant, SystemTime::now())
    }

    /// The same on a host whose clock says `now`, which may be wrong.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub fn issue_at(&self, grant: &Grant, now: SystemTime) -> Result<String, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = self.sign(grant, &key, now)?;
        Ok([certificate.pem(), key.serialize_pem(), self.certificate_pem.clone()].concat())
    }

    fn sign(
        &self,
        grant: &Grant,
        key: &KeyPair,
        now: SystemTime,
    ) -> Result<Certificate, AuthorityError> {
        let uri = node_name(
            self.cluster,
            grant.role,
            grant.host,
            grant.subtree.as_deref(),
            grant.squash_root,
        );
        let dns = server_name(self.cluster, grant.role);
        let mut params = valid_from(now)?;
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Millrace {} {}", grant.role.name(), grant.host));
        params.subject_alt_names =
            vec![SanType::DnsName(dns.try_into()?), SanType::URI(uri.try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate_pem, &self.key)?;
        Ok(params.signed_by(key, &issuer)?)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authority").field(&self.cluster).finish()
    }
}

/// Parameters with the dates set. Clocks of nodes may differ, hence a day back.
fn valid_from(now: SystemTime) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = (now - DAY).into();
    params.not_after = (now + VALIDITY).into();
    Ok(params)
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const VALIDITY: Duration = Duration::from_secs(3652 * 24 * 60 * 60);
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// An authority cannot be made, read or used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Its file.
    #[error(transparent)]
    File(#[from] IdentityError),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Making(#[from] rcgen::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;

    #[test]
    fn an_authority_that_was_saved_issues_for_the_same_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authority.pem");
        let cluster = ClusterId([3; 16]);
        Authority::create(cluster).unwrap().save(&path).unwrap();
        let authority = Authority::load(&path).unwrap();
        assert_eq!(authority.cluster(), cluster);
        let bundle = authority
            .issue(&Grant {
                role: Role::Metadata,
                host: HostId([4; 16]),
                subtree: None,
                squash_root: false,
            })
            .unwrap();
        let identity = Identity::from_pem(&bundle).unwrap();
        assert_eq!(identity.peer().cluster, cluster);
        assert!(!format!("{authority:?} {identity:?}").contains("PRIVATE"));
    }
}
