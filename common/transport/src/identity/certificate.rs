//! What a certificate says: the names in it, written by the authority and read from a peer.
//!
//! | name | form |
//! |---|---|
//! | DNS | `<role>.<cluster>.millrace`: a dialler demands it, so that TLS itself checks the role |
//! | URI | `millrace://<cluster>/<role>/<host>?subtree=<percent-encoded path>&squash_root=1` |
//!
//! Identifiers are in hexadecimal. The query is left out where nothing is restricted. An
//! authority's certificate has the one URI `millrace://<cluster>`.

use aws_lc_rs::digest;
use millrace_protocol::session::Role;
use millrace_types::{ClusterId, ErrorKind, Failure, HostId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use rustls::pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate,
    extensions::{GeneralName, ParsedExtension},
    prelude::FromDer as _,
};

/// What a node's certificate says about its holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerIdentity {
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// What it may be.
    pub role: Role,
    /// Which node it is.
    pub host: HostId,
    /// The directory that a client may see; nothing restricts it to one when absent.
    pub subtree: Option<Vec<u8>>,
    /// Whether root on that host counts as nobody.
    pub squash_root: bool,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
}

impl PeerIdentity {
    /// Reads a node's certificate. Whether to trust it has been decided before, by TLS.
    ///
    /// # Errors
    /// [`CertificateError`] when it is no certificate, or has not exactly one of our names.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let name = uri_of(certificate)?;
        let (cluster, rest) = split_cluster(&name)?;
        let invalid = || CertificateError::Name(name.clone());
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (role, host) =
            path.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or_else(invalid)?;
        let mut peer = Self {
            cluster,
            role: Role::from_name(role).ok_or_else(invalid)?,
            host: HostId::parse(host).map_err(|_| invalid())?,
            subtree: None,
            squash_root: false,
            fingerprint: fingerprint(certificate),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("subtree", path)) if peer.subtree.is_none() => {
                    peer.subtree = Some(percent_encoding::percent_decode_str(path).collect());
                }
                Some(("squash_root", "1")) => peer.squash_root = true,
                // A restriction that we do not understand must not be passed over.
                _ => return Err(invalid()),
            }
        }
        Ok(peer)
    }
}

/// What the certificate of a connection's peer says; TLS has checked it before.
///
/// Fails with `Forbidden` when there is none of ours.
pub(crate) fn of_connection(quic: &quinn::Connection) -> Result<PeerIdentity, Failure> {
    let refused = |why: String| Failure::new(ErrorKind::Forbidden, why);
    let chain = quic
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    let leaf = chain.as_ref().and_then(|chain| chain.first());
    let leaf = leaf.ok_or_else(|| refused("the peer shows no certificate".to_owned()))?;
    PeerIdentity::from_certificate(leaf).map_err(|error| refused(error.to_string()))
}

/// The URI of a node's certificate.
pub(crate) fn node_name(
    cluster: ClusterId,
    role: Role,
    host: HostId,
    subtree: Option<&[u8]>,
    squash_root: bool,
) -> String {
    let mut query = Vec::new();
    if let Some(path) = subtree {
        let path = percent_encoding::percent_encode(path, ENCODED);
        query.push(format!("subtree={path}"));
    }
    if squash_root {
        query.push("squash_root=1".to_owned());
    }
    let mark = if query.is_empty() { "" } else { "?" };
    let (role, query) = (role.name(), query.join("&"));
    format!("{SCHEME}{cluster}/{role}/{host}{mark}{query}")
}

/// The URI of an authority's certificate.
pub(crate) fn cluster_name(cluster: ClusterId) -> String {
    format!("{SCHEME}{cluster}")
}

/// The DNS name that a dialler demands.
pub(crate) fn server_name(cluster: ClusterId, role: Role) -> String {
    format!("{}.{cluster}.millrace", role.name())
}

/// The cluster that an authority's certificate names.
pub(crate) fn cluster_of_authority(
    certificate: &CertificateDer<'_>,
) -> Result<ClusterId, CertificateError> {
    let name = uri_of(certificate)?;
    match split_cluster(&name)? {
        (cluster, "") => Ok(cluster),
        _ => Err(CertificateError::Name(name)),
    }
}

/// Whether a certificate may sign others.
pub(super) fn is_authority(certificate: &CertificateDer<'_>) -> Result<bool, CertificateError> {
    Ok(parse(certificate)?.is_ca())
}

fn split_cluster(name: &str) -> Result<(ClusterId, &str), CertificateError> {
    let invalid = || CertificateError::Name(name.to_owned());
    let rest = name.strip_prefix(SCHEME).ok_or_else(invalid)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let cluster = ClusterId::parse(&rest[..end]).map_err(|_| invalid())?;
    Ok((cluster, &rest[end..]))
}

/// The only URI of the certificate.
fn uri_of(certificate: &CertificateDer<'_>) -> Result<String, CertificateError> {
    let parsed = parse(certificate)?;
    let names = parsed
        .extensions()
        .iter()
        .filter_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        })
        .flatten();
    let mut uris = names.filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.next()) {
        (Some(uri), None) => Ok(uri.to_owned()),
        (None, _) => Err(CertificateError::NoName),
        (Some(_), Some(_)) => Err(CertificateError::TwoNames),
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertificateError> {
    X509Certificate::from_der(certificate)
        .map(|(_, parsed)| parsed)
        .map_err(|error| CertificateError::Malformed(error.to_string()))
}

fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let hash = digest::digest(&digest::SHA256, certificate);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

const SCHEME: &str = "millrace://";

/// Everything but letters, digits and what is common in paths.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');

/// A certificate is none of a Millrace node or authority.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CertificateError {
    /// No X.509 certificate.
    #[error("malformed certificate: {0}")]
    Malformed(String),
    /// No URI name.
    #[error("certificate has no millrace:// name")]
    NoName,
    /// More than one URI name.
    #[error("certificate has more than one URI name")]
    TwoNames,
    /// A URI name of another form.
    #[error("certificate has the name {0:?}, which is none of a Millrace node")]
    Name(String),
}
