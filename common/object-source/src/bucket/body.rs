//! The bytes of a range on their way: counted, checked for their number, holding their permit.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{Stream, stream::BoxStream};

use crate::{Counters, Error, limits::Permit, pace::Pace};

/// The bytes of a range, as they arrive. Pieces have any size; together they are exactly the range,
/// or the last item is an error. Dropping it ends the request.
#[must_use = "nothing is received unless it is polled"]
pub struct RangeBody {
    source: Option<Source>,
    remaining: u64,
}

struct Source {
    stream: BoxStream<'static, Result<Bytes, Error>>,
    counters: Arc<Counters>,
    pace: Pace,
    _permit: Permit,
}

impl RangeBody {
    pub(crate) fn new(
        stream: BoxStream<'static, Result<Bytes, Error>>,
        len: u64,
        permit: Permit,
        counters: Arc<Counters>,
        pace: Pace,
    ) -> Self {
        let source = Some(Source { stream, counters, pace, _permit: permit });
        Self { source, remaining: len }
    }

    pub(crate) fn empty() -> Self {
        Self { source: None, remaining: 0 }
    }

    /// How many bytes have not been handed out yet.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Ends the request and gives its permit back.
    fn end(&mut self) {
        self.source = None;
    }
}

impl Stream for RangeBody {
    type Item = Result<Bytes, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let Some(source) = &mut this.source else {
                return Poll::Ready(None);
            };
            let Poll::Ready(item) = source.stream.as_mut().poll_next(cx) else {
                std::task::ready!(source.pace.poll_too_slow(cx));
                this.end();
                return Poll::Ready(Some(Err(Error::unavailable(
                    "the bucket sends its answer too slowly",
                ))));
            };
            match item {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    source.counters.receive(bytes.len());
                    let len = bytes.len() as u64;
                    source.pace.arrived(len);
                    if len > this.remaining {
                        this.end();
                        return Poll::Ready(Some(Err(Error::unavailable(
                            "the bucket sent more bytes than were asked for",
                        ))));
                    }
                    this.remaining -= len;
                    if this.remaining == 0 {
                        // Nothing more is due: the permit need not wait for the end of the stream.
                        this.end();
                    }
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Some(Err(error)) => {
                    this.end();
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    let missing = this.remaining;
                    this.end();
                    return Poll::Ready((missing > 0).then(|| {
                        Err(Error::unavailable(format!(
                            "the bucket ended its answer {missing} bytes too early"
                        )))
                    }));
                }
            }
        }
    }
}

impl std::fmt::Debug for RangeBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeBody").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}
