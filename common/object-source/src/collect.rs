//! Answers that are taken whole, of servers that may send anything for any time.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use futures::{Stream, TryStreamExt};
use http::StatusCode;

/// Error documents have some hundred bytes; what stands before a bucket may send a page.
pub(crate) const REFUSAL_LEN_MAX: usize = 1024 * 1024;

/// The answers to changes are XML of at most a thousand entries, each with a key of up to 3 KiB
/// encoded.
pub(crate) const DOCUMENT_LEN_MAX: usize = 16 * 1024 * 1024;

/// What is said of an answer that [`collect`] gives up.
pub(crate) const TOO_LONG: &str = "the bucket's answer is longer than any can be";

/// The body of an answer with this status. `None`: it is too long. Of one that refuses the
/// beginning is enough: the status has said what counts.
///
/// # Errors
/// The body's own.
pub(crate) async fn collect<S, E>(status: StatusCode, body: S) -> Result<Option<Bytes>, E>
where
    S: Stream<Item = Result<Bytes, E>>,
{
    let mut body = pin!(body);
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.try_next().await? {
        if !status.is_success() {
            let room = REFUSAL_LEN_MAX - bytes.len();
            bytes.extend_from_slice(&piece[..piece.len().min(room)]);
            if bytes.len() == REFUSAL_LEN_MAX {
                break;
            }
        } else if bytes.len() + piece.len() > DOCUMENT_LEN_MAX {
            return Ok(None);
        } else {
            bytes.extend_from_slice(&piece);
        }
    }
    Ok(Some(bytes.freeze()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;

    use super::*;

    /// What is taken of an answer of so many pieces of a mebibyte less a byte.
    async fn taken(status: StatusCode, pieces: usize) -> Option<usize> {
        let piece = Bytes::from(vec![b'x'; REFUSAL_LEN_MAX - 1]);
        let body = stream::iter((0..pieces).map(|_| Ok::<_, Infallible>(piece.clone())));
        collect(status, body).await.unwrap().map(|bytes| bytes.len())
    }

    #[tokio::test]
    async fn a_refusal_is_cut_and_another_answer_given_up() {
        let piece = REFUSAL_LEN_MAX - 1;
        assert_eq!(taken(StatusCode::FORBIDDEN, 0).await, Some(0));
        assert_eq!(taken(StatusCode::FORBIDDEN, 1).await, Some(piece));
        assert_eq!(taken(StatusCode::FORBIDDEN, usize::MAX).await, Some(REFUSAL_LEN_MAX));
        assert_eq!(taken(StatusCode::OK, 16).await, Some(16 * piece));
        assert_eq!(taken(StatusCode::OK, usize::MAX).await, None);
    }
}
