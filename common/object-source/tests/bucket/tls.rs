//! What a person is told where TLS does not come about.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    process::Command,
    sync::Arc,
    thread,
};

use millrace_object_source::{Bucket, Error, LinkSpec, Settings};
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

use crate::scripted::{Answer, Scripted};

/// Serves connections on a free port of loopback, one after the other, until the process of the
/// test ends. Tells host and port.
fn serve(serve: impl Fn(&mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            serve(&mut stream);
            // What was sent arrives only where nothing is left unread when the socket is closed.
            if stream.shutdown(Shutdown::Write).is_ok() {
                drop(io::copy(&mut stream, &mut io::sink()));
            }
        }
    });
    address
}

fn serve_tls(certificate: &Certificate, key: &KeyPair) -> String {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    serve(move |stream| {
        let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
        // It fails, on the client's side or on this one, which then says so.
        drop(tls.complete_io(stream));
    })
}

/// Serves TLS with a certificate for 127.0.0.1 that nobody else has signed.
fn serve_self_signed(change: impl FnOnce(&mut CertificateParams)) -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    change(&mut params);
    serve_tls(&params.self_signed(&key).unwrap(), &key)
}

async fn said(endpoint: &str) -> String {
    let spec = LinkSpec::new("s3://data", Some(endpoint), None, Some("anonymous")).unwrap();
    let bucket = Bucket::open(&spec, &Settings::default()).unwrap();
    let error = bucket.check("", false).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains(endpoint), "{said}");
    said
}

#[tokio::test]
async fn a_certificate_that_nobody_trusts_is_told_in_words() {
    let address = serve_self_signed(|_| {});
    let said = said(&format!("https://{address}")).await;
    for word in ["certificate is not accepted", "self-signed", "update-ca-certificates"] {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_told_with_its_time_and_the_clock() {
    let address = serve_self_signed(|params| {
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    });
    let said = said(&format!("https://{address}")).await;
    for word in ["it expired at 2001-01-01T00:00:00Z, and here it is 20", "renewed", "clock"] {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

/// In a process of its own, which trusts the authority: which ones are trusted comes with the
/// environment.
#[tokio::test]
async fn a_certificate_for_another_name_is_told_with_both() {
    const ENDPOINT: &str = "MILLRACE_TEST_TLS_ENDPOINT";
    const SELF: &str = "tls::a_certificate_for_another_name_is_told_with_both";
    if let Ok(endpoint) = env::var(ENDPOINT) {
        let said = said(&endpoint).await;
        let words = "it is for bucket.example, 10.0.0.1, and not for 127.0.0.1: write a name";
        assert!(said.contains(words), "{said}");
        return;
    }
    let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let names = ["bucket.example", "10.0.0.1"].map(str::to_owned);
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let address = serve_tls(&certificate, &key);
    let dir = tempfile::tempdir().unwrap();
    let trusted = dir.path().join("authority.pem");
    fs::write(&trusted, authority.pem()).unwrap();
    let ran = Command::new(env::current_exe().unwrap())
        .args(["--exact", SELF])
        .env(ENDPOINT, format!("https://{address}"))
        .env("SSL_CERT_FILE", &trusted)
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && told.contains("1 passed"), "{told}");
}

#[tokio::test]
async fn plain_http_behind_https_is_told_in_words() {
    let address = serve(|stream| {
        let mut greeting = [0; 4096];
        if stream.read(&mut greeting).is_ok() {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
    });
    let answers = said(&format!("https://{address}")).await;
    assert!(answers.contains("speaks no TLS") && answers.contains("write http://"), "{answers}");
    let address = serve(|stream| {
        let mut greeting = [0; 4096];
        assert!(stream.read(&mut greeting).is_ok());
    });
    let hangs_up = said(&format!("https://{address}")).await;
    assert!(hangs_up.contains("hangs up") && hangs_up.contains("write http://"), "{hangs_up}");
}

#[tokio::test]
async fn tls_behind_plain_http_is_told_in_words() {
    let address = serve_self_signed(|_| {});
    let alert = said(&format!("http://{address}")).await;
    assert!(alert.contains("is no HTTP") && alert.contains("write https://"), "{alert}");
    let server = Scripted::start(|_| Answer {
        status: 400,
        body: "Client sent an HTTP request to an HTTPS server.\n".to_owned(),
        ..Answer::default()
    });
    let refusal = said(&server.endpoint).await;
    assert!(refusal.contains("speaks TLS") && refusal.contains("write https://"), "{refusal}");
}
