//! Which library encrypts, and with which cipher.
//!
//! Every byte that is read or written is encrypted once and decrypted once, so that AES is among
//! the largest parts of what a stream costs. AES-GCM with vector instructions is twice as fast as
//! without, and of two libraries each has it for other processors: aws-lc for those with AVX-512,
//! ring for those with AVX2 alone. Which one a peer uses is of no concern to the other.

use rustls::{
    CipherSuite,
    crypto::{CryptoProvider, aws_lc_rs, ring},
};

/// A library that encrypts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    /// aws-lc.
    AwsLc,
    /// ring.
    Ring,
}

impl Library {
    /// The faster one on this host.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn for_host() -> Self {
        let has_vectors = is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx2");
        match has_vectors && !is_x86_feature_detected!("avx512bw") {
            true => Self::Ring,
            false => Self::AwsLc,
        }
    }

    /// The faster one on this host.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn for_host() -> Self {
        Self::AwsLc
    }

    /// What TLS is made of with it. AES with keys of 128 bits comes first: of those of 256 bits a
    /// block takes 14 rounds instead of 10.
    pub(crate) fn provider(self) -> CryptoProvider {
        let mut provider = match self {
            Self::AwsLc => aws_lc_rs::default_provider(),
            Self::Ring => ring::default_provider(),
        };
        let first = CipherSuite::TLS13_AES_128_GCM_SHA256;
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != first);
        provider
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Cursor, sync::Arc};

    use millrace_protocol::session::Role;
    use millrace_types::{ClusterId, HostId};
    use rustls::{ClientConnection, ServerConnection, pki_types::ServerName};

    use super::*;
    use crate::{Authority, Grant, Identity, identity::server_name, tls};

    #[test]
    fn nodes_of_either_library_understand_each_other_and_encrypt_with_keys_of_128_bits() {
        let cluster = ClusterId([3; 16]);
        let authority = Authority::create(cluster).unwrap();
        let issue = |role, host| {
            let host = HostId([host; 16]);
            let grant = Grant { role, host, subtree: None, squash_root: false };
            Identity::from_pem(&authority.issue(&grant).unwrap()).unwrap()
        };
        let (dialled, dialling) = (issue(Role::Target, 1), issue(Role::Client, 2));
        let libraries = [Library::AwsLc, Library::Ring];
        for (one, other) in libraries.map(|one| libraries.map(|other| (one, other))).concat() {
            let config = tls::client_config(&dialling, one.provider()).unwrap();
            let name = ServerName::try_from(server_name(cluster, Role::Target)).unwrap();
            let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
            let config = tls::server_config(&dialled, other.provider()).unwrap();
            let mut server = ServerConnection::new(Arc::new(config)).unwrap();
            while client.is_handshaking() || server.is_handshaking() {
                let mut sent = Vec::new();
                client.write_tls(&mut sent).unwrap();
                server.read_tls(&mut Cursor::new(sent)).unwrap();
                server.process_new_packets().unwrap();
                let mut sent = Vec::new();
                server.write_tls(&mut sent).unwrap();
                client.read_tls(&mut Cursor::new(sent)).unwrap();
                client.process_new_packets().unwrap();
            }
            let suite = client.negotiated_cipher_suite().unwrap().suite();
            assert_eq!(suite, CipherSuite::TLS13_AES_128_GCM_SHA256, "{one:?} and {other:?}");
        }
    }
}
