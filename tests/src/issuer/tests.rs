//! What it refuses, so that who is served has asked as AWS wants it.

use std::io::{Read as _, Write as _};

use super::*;

fn keys() -> TemporaryKeys {
    let text = str::to_owned;
    TemporaryKeys { id: text("ASIA1"), secret: text("hunter2"), token: text("as-good-as-a-secret") }
}

/// Status and body of a request to the metadata service.
fn ask(issuer: &Issuer, request: &str, header: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(issuer.metadata).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: h\r\n{header}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn metadata_is_told_within_a_session_only_and_a_session_has_a_time() {
    const ROLE: &str = "GET /latest/meta-data/iam/security-credentials/worker";
    const TIME: &str = "X-aws-ec2-metadata-token-ttl-seconds";
    let issuer = Issuer::start().unwrap();
    issuer.give(&keys(), Timestamp::now());
    assert_eq!(ask(&issuer, ROLE, "X-none: 1").0, 401, "as the first version would be asked");
    assert_eq!(ask(&issuer, ROLE, "X-aws-ec2-metadata-token: session-1").0, 401);
    for wrong in ["X-none: 1".to_owned(), format!("{TIME}: 0"), format!("{TIME}: 21601")] {
        assert_eq!(ask(&issuer, "PUT /latest/api/token", &wrong).0, 400, "{wrong}");
    }
    let begun = ask(&issuer, "PUT /latest/api/token", &format!("{TIME}: 600"));
    assert_eq!(begun.0, 200);
    let session = format!("X-aws-ec2-metadata-token: {}", begun.1);
    let (status, body) = ask(&issuer, ROLE, &session);
    assert_eq!((status, issuer.given()), (200, 1));
    assert!(body.contains("hunter2") && body.contains("Expiration"), "{body}");
    issuer.fail(Some(Trouble::Unknown));
    assert_eq!(ask(&issuer, ROLE, &session).0, 404);
}
