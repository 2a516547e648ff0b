//! The body of a range: checked to be of the right version, and gone on with where it broke off.

use std::{fmt, ops::Range, sync::Arc, time::Instant};

use backon::{BackoffBuilder, ExponentialBackoff};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use http::{HeaderMap, StatusCode, header, response::Parts};

use super::{Ask, HttpBody, Web};
use crate::Error;

/// Whether the headers of an answer are those of the version that was asked for.
type IsVersion = Box<dyn Fn(&HeaderMap) -> bool + Send + Sync>;

/// A range on its way.
struct Download {
    web: Arc<Web>,
    ask: Ask,
    is_version: IsVersion,
    /// What has not come yet.
    range: Range<u64>,
    body: HttpBody,
    pauses: ExponentialBackoff,
    begun: Instant,
}

impl Web {
    /// Asks for a range, which is not empty. `is_version` looks at the headers of each answer: a
    /// server that knows no conditions sends whatever it has.
    pub(crate) async fn get_range(
        self: &Arc<Self>,
        ask: Ask,
        range: Range<u64>,
        is_version: impl Fn(&HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
        let (web, is_version): (_, IsVersion) = (Arc::clone(self), Box::new(is_version));
        let body = open(&web, &ask, &range, &is_version).await?;
        let (pauses, begun) = (web.backoff.build(), Instant::now());
        let download = Download { web, ask, is_version, range, body, pauses, begun };
        Ok(stream::try_unfold(download, Download::next).boxed())
    }
}

async fn open(
    web: &Web,
    ask: &Ask,
    range: &Range<u64>,
    is_version: &IsVersion,
) -> Result<HttpBody, Error> {
    let told = format!("bytes={}-{}", range.start, range.end - 1);
    let (head, body) = web.open(&ask.clone().with(header::RANGE.as_str(), &told)?).await?;
    if !is_version(&head.headers) || !is_range(&head, range) {
        return Err(Error::Changed { key: ask.key.clone() });
    }
    Ok(body)
}

/// Whether an answer is of this range, or of a whole object that is this range.
fn is_range(head: &Parts, range: &Range<u64>) -> bool {
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    if head.status == StatusCode::PARTIAL_CONTENT {
        let expected = format!("bytes {}-{}/", range.start, range.end - 1);
        return text(header::CONTENT_RANGE).is_some_and(|told| told.starts_with(&expected));
    }
    let len = text(header::CONTENT_LENGTH).and_then(|told| told.parse().ok());
    range.start == 0 && len == Some(range.end)
}

impl Download {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Error> {
        loop {
            if self.range.is_empty() {
                return Ok(None);
            }
            let broken = match self.body.try_next().await {
                Ok(Some(bytes)) => {
                    // Too many are the reader's to notice.
                    let end = self.range.start.saturating_add(bytes.len() as u64);
                    self.range.start = end.min(self.range.end);
                    return Ok(Some((bytes, self)));
                }
                Ok(None) => Error::unavailable("the bucket ended its answer too early"),
                Err(error) => self.web.unreachable(&error),
            };
            let late = self.begun.elapsed() >= self.web.settings.retry_timeout;
            let Some(pause) = self.pauses.next().filter(|_| !late) else {
                return Err(broken);
            };
            tracing::debug!(key = %self.ask.key, at = self.range.start, %broken, "a body is asked \
                for again");
            tokio::time::sleep(pause).await;
            self.body = open(&self.web, &self.ask, &self.range, &self.is_version).await?;
        }
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download").field("range", &self.range).finish_non_exhaustive()
    }
}
