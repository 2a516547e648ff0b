//! What goes wrong with TLS, in words, and what to do about it.

use std::error::Error as StdError;

use http::StatusCode;
use rustls::{
    AlertDescription, CertificateError, Error as TlsError,
    pki_types::{ServerName, UnixTime},
};

use crate::{Error, transport::cause};

/// What is said of a server that ends the connection when it is greeted in TLS.
pub(crate) const HANGS_UP: &str = "it hangs up when it is greeted in TLS: if it speaks plain \
     HTTP, write http:// in the endpoint; if not, check the port";

/// What is said of what answers a request over plain HTTP otherwise.
pub(crate) const NO_HTTP: &str = "what it answers is no HTTP: if it speaks TLS, write https:// in \
     the endpoint; if not, check the port";

const NO_TLS: &str = "it speaks no TLS there: if plain HTTP is meant, write http:// in the \
     endpoint; if not, check the port";

/// What common servers say to who speaks plain HTTP to their TLS port, in lower case.
const WANTED: [&str; 3] = [
    // Go's, and so MinIO's and SeaweedFS's.
    "client sent an http request to an https server",
    // nginx's.
    "plain http request was sent to https port",
    // Apache's.
    "speaking plain http to an ssl-enabled server port",
];

/// What a failure says about TLS, if that is what failed.
pub(crate) fn failure(error: &(dyn StdError + 'static)) -> Option<String> {
    Some(match cause::<TlsError>(error)? {
        TlsError::InvalidMessage(_) => NO_TLS.to_owned(),
        TlsError::InvalidCertificate(error) => {
            format!("its TLS certificate is not accepted: {}", certificate(error))
        }
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => {
            "it wants a TLS certificate of its clients, and Millrace shows none to buckets".into()
        }
        TlsError::AlertReceived(alert) => format!(
            "it refuses TLS as Millrace speaks it ({alert:?}): check the endpoint's name, and that \
             it speaks TLS 1.2 or 1.3"
        ),
        TlsError::PeerIncompatible(why) => {
            format!("it speaks TLS in no way that Millrace does, which are 1.2 and 1.3: {why:?}")
        }
        other => format!("TLS fails: {other}"),
    })
}

/// Why a certificate is not accepted, and what to do.
fn certificate(error: &CertificateError) -> String {
    use CertificateError as Why;
    const EXPIRED: &str = "have it renewed, or set this host's clock if that is wrong";
    const NOT_YET: &str = "set this host's clock if that is wrong, or wait";
    match error {
        Why::UnknownIssuer => "it is self-signed, or signed by an authority that this host does \
                               not trust: add the authority's certificate to this host's \
                               (update-ca-certificates), and restart the daemon"
            .to_owned(),
        Why::Expired => format!("it has expired: {EXPIRED}"),
        Why::ExpiredContext { time, not_after } => {
            let (at, now) = (time_text(*not_after), time_text(*time));
            format!("it expired at {at}, and here it is {now}: {EXPIRED}")
        }
        Why::NotValidYet => format!("it is not valid yet: {NOT_YET}"),
        Why::NotValidYetContext { time, not_before } => {
            let (at, now) = (time_text(*not_before), time_text(*time));
            format!("it is valid from {at} on, and here it is {now}: {NOT_YET}")
        }
        Why::NotValidForName => {
            "it is for another name: write the name that it is for in the endpoint".to_owned()
        }
        Why::NotValidForNameContext { expected, presented } => {
            let presented: Vec<_> = presented.iter().map(|name| plain(name)).collect();
            let names = match presented.is_empty() {
                true => "no name at all".to_owned(),
                false => presented.join(", "),
            };
            format!(
                "it is for {names}, and not for {}: write a name that it is for in the endpoint, \
                 or have it made anew",
                name_text(expected)
            )
        }
        Why::Revoked => "it was revoked: have another one made".to_owned(),
        other => format!("{other}: have another one made"),
    }
}

fn time_text(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

fn name_text(name: &ServerName<'_>) -> String {
    match name {
        ServerName::IpAddress(address) => std::net::IpAddr::from(*address).to_string(),
        other => other.to_str().into_owned(),
    }
}

/// A name as it was meant: they come as `DnsName("a.example")` and `IpAddress(127.0.0.1)`.
fn plain(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.map_or(name, |inner| inner.trim_matches('"'))
}

/// What to say where an answer over plain HTTP is that TLS is wanted.
pub(crate) fn wanted(endpoint: &str, status: StatusCode, body: &[u8]) -> Option<Error> {
    if status != StatusCode::BAD_REQUEST || !endpoint.starts_with("http://") {
        return None;
    }
    let said = String::from_utf8_lossy(&body[..body.len().min(1024)]).to_ascii_lowercase();
    WANTED.iter().any(|words| said.contains(words)).then(|| {
        Error::unavailable(format!(
            "{endpoint} speaks TLS, and was asked over plain HTTP: write https:// in the endpoint"
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use object_store::client::{HttpError, HttpErrorKind};

    use super::*;
    use crate::transport::unreachable;

    /// As the HTTP client wraps it.
    fn told(error: impl Into<TlsError>) -> String {
        let inner = io::Error::new(io::ErrorKind::InvalidData, error.into());
        let error = HttpError::new(HttpErrorKind::Connect, io::Error::other(inner));
        unreachable(&error, "https://h:1").to_string()
    }

    #[test]
    fn a_certificate_that_is_refused_is_told_with_the_remedy() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let (early, late) = (at(1_000_000_000), at(1_800_000_000));
        let name = |name: &'static str| ServerName::try_from(name).unwrap();
        let presented = vec!["DnsName(\"a.example\")".to_owned(), "IpAddress(10.0.0.1)".to_owned()];
        let presents = |presented, expected| CertificateError::NotValidForNameContext {
            expected: name(expected),
            presented,
        };
        for (error, words) in [
            (CertificateError::UnknownIssuer, &["does not trust", "update-ca-certificates"][..]),
            (
                CertificateError::ExpiredContext { time: late, not_after: early },
                &["expired at 2001-09-09T01:46:40Z", "here it is 2027-01-15", "renewed", "clock"],
            ),
            (
                CertificateError::NotValidYetContext { time: early, not_before: late },
                &["valid from 2027-01-15", "here it is 2001-09-09", "clock"],
            ),
            (presents(presented, "127.0.0.1"), &["for a.example, 10.0.0.1, and not for 127.0.0.1"]),
            (presents(Vec::new(), "b.example"), &["no name at all, and not for b.example"]),
            (CertificateError::Revoked, &["was revoked"]),
        ] {
            let said = told(error);
            assert!(said.starts_with("cannot reach https://h:1: its TLS certificate"), "{said}");
            for word in words {
                assert!(said.contains(word), "no {word:?} in: {said}");
            }
        }
    }

    #[test]
    fn what_else_goes_wrong_with_tls_is_no_matter_of_certificates() {
        let told_alert = |alert| told(TlsError::AlertReceived(alert));
        assert!(told_alert(AlertDescription::CertificateRequired).contains("of its clients"));
        let said = told_alert(AlertDescription::ProtocolVersion);
        assert!(said.contains("TLS 1.2 or 1.3") && said.contains("ProtocolVersion"), "{said}");
        let said = told(TlsError::InvalidMessage(rustls::InvalidMessage::InvalidContentType));
        assert!(said.contains("speaks no TLS") && said.contains("http://"), "{said}");
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof");
        let error = HttpError::new(HttpErrorKind::Connect, ended);
        let said = unreachable(&error, "https://h:1").to_string();
        assert!(said.contains("hangs up when it is greeted in TLS"), "{said}");
    }

    #[test]
    fn servers_that_want_tls_say_so_in_words_of_their_own() {
        let bodies = [
            "Client sent an HTTP request to an HTTPS server.\n",
            "<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head>",
            "<p>Reason: You're speaking plain HTTP to an SSL-enabled server port.<br />",
        ];
        let (http, bad) = ("http://h:1", StatusCode::BAD_REQUEST);
        for body in bodies {
            let said = wanted(http, bad, body.as_bytes()).unwrap().to_string();
            assert!(said.contains("https://"), "{said}");
            assert_eq!(wanted("https://h:1", bad, body.as_bytes()), None);
            assert_eq!(wanted(http, StatusCode::OK, body.as_bytes()), None);
        }
        assert_eq!(wanted(http, bad, b"<Error><Code>InvalidRequest</Code></Error>"), None);
    }
}
