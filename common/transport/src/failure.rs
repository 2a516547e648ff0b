//! From what QUIC reports to what a caller must do.

use millrace_types::{ErrorKind, Failure};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};

/// Why a side closed a connection or a stream: the code of the close or reset frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum CloseCode {
    /// Nobody needs it any more; also what quinn sends when the last handle is dropped.
    Done = 0,
    /// The certificate does not allow it. Trying again does not help.
    Refused = 1,
    /// The peer broke the protocol.
    Protocol = 2,
    /// A limit on connections is reached.
    Limit = 3,
    /// The server shuts down.
    Shutdown = 4,
    /// The service ended this connection, for example for a newer one of the same session.
    Service = 5,
    /// Of a stream: the caller takes the request back.
    Cancelled = 6,
}

impl CloseCode {
    pub(crate) fn code(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    fn from_code(code: VarInt) -> Option<Self> {
        [
            Self::Done,
            Self::Refused,
            Self::Protocol,
            Self::Limit,
            Self::Shutdown,
            Self::Service,
            Self::Cancelled,
        ]
        .into_iter()
        .find(|known| known.code() == code)
    }
}

/// What the end of a connection means to whoever wanted to use it.
pub(crate) fn of_connection(error: &ConnectionError) -> Failure {
    let unavailable = |why: String| Failure::new(ErrorKind::Unavailable, why);
    match error {
        ConnectionError::TimedOut => unavailable("no answer".to_owned()),
        ConnectionError::Reset => unavailable("the server was restarted".to_owned()),
        ConnectionError::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason).into_owned();
            match CloseCode::from_code(close.error_code) {
                Some(CloseCode::Refused) => Failure::new(ErrorKind::Forbidden, reason),
                Some(CloseCode::Protocol) => Failure::new(ErrorKind::Protocol, reason),
                Some(CloseCode::Limit) => Failure::new(ErrorKind::Busy, reason),
                _ if reason.is_empty() => unavailable("the peer closed the connection".to_owned()),
                _ => unavailable(reason),
            }
        }
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code.into()) {
            Some(alert) => Failure::new(
                of_alert(alert),
                format!("the peer refuses this node's certificate: {}", alert_text(alert)),
            ),
            None => unavailable(error.to_string()),
        },
        ConnectionError::TransportError(cause) => match alert(cause.code.into()) {
            Some(alert) => Failure::new(
                of_alert(alert),
                format!("the peer's certificate is refused: {}", cause.reason),
            ),
            None => unavailable(error.to_string()),
        },
        ConnectionError::VersionMismatch => {
            Failure::new(ErrorKind::Protocol, "the peer speaks no common QUIC version")
        }
        ConnectionError::LocallyClosed => unavailable("the connection was closed here".to_owned()),
        ConnectionError::CidsExhausted => unavailable(error.to_string()),
    }
}

/// What a failed read means to whoever waits for the bytes.
pub(crate) fn of_read(error: &ReadError) -> Failure {
    match error {
        ReadError::ConnectionLost(error) => of_connection(error),
        ReadError::Reset(code) if *code == CloseCode::Cancelled.code() => {
            Failure::new(ErrorKind::Cancelled, "the caller took the request back")
        }
        ReadError::Reset(_) => Failure::new(ErrorKind::Unavailable, "the peer reset the stream"),
        ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => {
            Failure::new(ErrorKind::Internal, error.to_string())
        }
    }
}

/// What a failed write means to whoever wanted to send. `None`: the peer does not want more bytes;
/// it may have answered already.
pub(crate) fn of_write(error: &WriteError) -> Option<Failure> {
    match error {
        WriteError::Stopped(_) => None,
        WriteError::ConnectionLost(error) => Some(of_connection(error)),
        WriteError::ClosedStream | WriteError::ZeroRttRejected => {
            Some(Failure::new(ErrorKind::Internal, error.to_string()))
        }
    }
}

/// Why a peer's handshake was refused, for the operator's log. `None`: it was not finished for
/// reasons that need nobody's attention, such as the end of the peer.
pub(crate) fn handshake_refusal(error: &ConnectionError) -> Option<String> {
    match error {
        ConnectionError::TransportError(cause) => Some(match cause.reason.as_str() {
            reason if reason.contains("sent no certificates") => {
                "the peer shows no certificate".to_owned()
            }
            // Bad: an authority of the same name, but with another key.
            reason if reason.contains("UnknownIssuer") || reason.contains("BadSignature") => {
                "the peer's certificate is of another cluster".to_owned()
            }
            _ => cause.to_string(),
        }),
        ConnectionError::ConnectionClosed(close) => alert(close.error_code.into())
            .map(|alert| format!("the peer refuses us: {}", alert_text(alert))),
        ConnectionError::VersionMismatch => Some(error.to_string()),
        _ => None,
    }
}

/// The TLS alert within a QUIC error code (RFC 9001, section 4.8).
fn alert(code: u64) -> Option<u8> {
    match code {
        0x100..=0x1ff => u8::try_from(code - 0x100).ok(),
        _ => None,
    }
}

/// What a refused handshake asks of the caller.
fn of_alert(alert: u8) -> ErrorKind {
    match alert {
        // A host whose clock is wrong, as after a start without a time server, takes sound
        // certificates for such ones until it is set right.
        CERTIFICATE_EXPIRED => ErrorKind::Unavailable,
        _ => ErrorKind::Forbidden,
    }
}

/// The certificate is outside of its time. rustls says so of one that is not valid yet, too.
const CERTIFICATE_EXPIRED: u8 = 45;

/// The alerts that a wrong certificate causes (RFC 8446, section 6.2).
fn alert_text(alert: u8) -> String {
    match alert {
        42 => "bad certificate, or not valid for this role".to_owned(),
        CERTIFICATE_EXPIRED => {
            "certificate expired, or not valid yet: do the hosts' clocks agree?".to_owned()
        }
        48 | 51 => "certificate of another cluster".to_owned(),
        116 => "a certificate is required".to_owned(),
        120 => "no common protocol version".to_owned(),
        other => format!("TLS alert {other}"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use quinn::{ConnectionClose, TransportErrorCode};
    use quinn_proto::TransportError;

    use super::*;

    /// What a handshake comes to that the peer, or this node, has ended with an alert.
    fn ended_with(alert: u8) -> [Failure; 2] {
        let error_code = TransportErrorCode::crypto(alert);
        let close = ConnectionClose { error_code, frame_type: None, reason: Bytes::new() };
        let reason = "invalid peer certificate: certificate expired".to_owned();
        let cause = TransportError { code: error_code, frame: None, reason };
        let ends =
            [ConnectionError::ConnectionClosed(close), ConnectionError::TransportError(cause)];
        ends.map(|end| of_connection(&end))
    }

    #[test]
    fn a_certificate_outside_of_its_time_is_waited_for_and_points_to_the_clocks() {
        let [theirs, ours] = ended_with(CERTIFICATE_EXPIRED);
        assert_eq!([theirs.kind, ours.kind], [ErrorKind::Unavailable; 2]);
        assert!(theirs.message.contains("this node's certificate"), "{theirs}");
        assert!(theirs.message.contains("clocks"), "{theirs}");
        assert!(ours.message.contains("certificate expired"), "{ours}");
    }

    #[test]
    fn a_certificate_that_is_wrong_for_good_is_not_waited_for() {
        for alert in [42, 44, 46, 48, 51, 116, 120] {
            let kinds = ended_with(alert).map(|failure| failure.kind);
            assert_eq!(kinds, [ErrorKind::Forbidden; 2], "alert {alert}");
        }
    }
}
