//! What bundles are accepted, and that a certificate reads back what the authority wrote.

use std::os::unix::fs::PermissionsExt as _;

use millrace_protocol::session::Role;
use millrace_types::{ClusterId, HostId};

use super::*;
use crate::authority::{Authority, Grant};

fn grant(role: Role) -> Grant {
    Grant { role, host: HostId([7; 16]), subtree: None, squash_root: false }
}

#[test]
fn a_certificate_says_what_was_granted() {
    let authority = Authority::create(ClusterId([1; 16])).unwrap();
    let strange = b"/a dir/with&=?%\xff and \xc3\xa9".to_vec();
    let bundle = authority
        .issue(&Grant { subtree: Some(strange.clone()), squash_root: true, ..grant(Role::Client) })
        .unwrap();
    let identity = Identity::from_pem(&bundle).unwrap();
    let peer = identity.peer();
    assert_eq!(peer.cluster, ClusterId([1; 16]));
    assert_eq!(peer.role, Role::Client);
    assert_eq!(peer.host, HostId([7; 16]));
    assert_eq!(peer.subtree, Some(strange));
    assert!(peer.squash_root);

    let plain = Identity::from_pem(&authority.issue(&grant(Role::Admin)).unwrap()).unwrap();
    assert_eq!(plain.peer().subtree, None);
    assert!(!plain.peer().squash_root);
    assert_ne!(plain.peer().fingerprint, peer.fingerprint);
}

#[test]
fn a_file_that_others_may_read_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.pem");
    let authority = Authority::create(ClusterId([1; 16])).unwrap();
    write_private(&path, &authority.issue(&grant(Role::Target)).unwrap()).unwrap();
    Identity::load(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let error = Identity::load(&path).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
    let error = Identity::load(&directory.path().join("none")).unwrap_err();
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn an_incomplete_bundle_says_what_is_missing() {
    let authority = Authority::create(ClusterId([1; 16])).unwrap();
    let bundle = authority.issue(&grant(Role::Target)).unwrap();
    let without_key = bundle.replace("PRIVATE KEY", "SOMETHING");
    let error = Identity::from_pem(&without_key).unwrap_err();
    assert!(matches!(error, IdentityError::Missing("private key")));
    let error = Identity::from_pem("hello").unwrap_err();
    assert!(matches!(error, IdentityError::Missing("node certificate")));
}

#[test]
fn a_node_of_another_cluster_than_its_authority_is_refused() {
    let ours = Authority::create(ClusterId([1; 16])).unwrap();
    let theirs = Authority::create(ClusterId([2; 16])).unwrap();
    let ours = ours.issue(&grant(Role::Target)).unwrap();
    let theirs = theirs.issue(&grant(Role::Target)).unwrap();
    let begin = "-----BEGIN CERTIFICATE-----";
    let mixed =
        ours[..ours.rfind(begin).unwrap()].to_owned() + &theirs[theirs.rfind(begin).unwrap()..];
    let error = Identity::from_pem(&mixed).unwrap_err();
    assert!(matches!(error, IdentityError::TwoClusters), "{error}");
}
