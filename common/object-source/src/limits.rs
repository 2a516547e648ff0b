//! Permits: how many requests and bytes may be in flight to one bucket.

use std::{sync::Arc, time::Duration};

use millrace_types::KIB;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{Error, Settings};

/// The limits of one bucket. Bytes are counted in KiB, so that a 32-bit count covers 4 TiB.
#[derive(Debug)]
pub(crate) struct Limits {
    requests: Arc<Semaphore>,
    kibibytes: Arc<Semaphore>,
    kibibytes_max: u32,
    queue_timeout: Duration,
}

/// The right to one request; held until its answer has been read to the end or dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _bytes: Option<OwnedSemaphorePermit>,
    _request: OwnedSemaphorePermit,
}

impl Limits {
    pub(crate) fn new(settings: &Settings) -> Self {
        let kibibytes_max =
            u32::try_from(settings.bytes_in_flight_max.0 / KIB).unwrap_or(u32::MAX >> 4).max(1);
        Self {
            requests: Arc::new(Semaphore::new(settings.requests_in_flight_max.max(1))),
            kibibytes: Arc::new(Semaphore::new(kibibytes_max as usize)),
            kibibytes_max,
            queue_timeout: settings.queue_timeout,
        }
    }

    /// Waits for the right to a request that moves `bytes`. One larger than the whole limit passes
    /// alone. Bytes first, then the request: all take them in this order, so nobody waits in a
    /// ring.
    pub(crate) async fn acquire(&self, bytes: u64) -> Result<Permit, Error> {
        let take = async {
            let closed = "semaphores of limits are never closed";
            let wanted = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
            let bytes = match wanted.min(self.kibibytes_max) {
                0 => None,
                count => {
                    Some(Arc::clone(&self.kibibytes).acquire_many_owned(count).await.expect(closed))
                }
            };
            let request = Arc::clone(&self.requests).acquire_owned().await.expect(closed);
            Permit { _bytes: bytes, _request: request }
        };
        timeout(self.queue_timeout, take).await.map_err(|_| Error::Busy {
            message: format!(
                "too many requests to the bucket are in flight: waited {} s for a turn",
                self.queue_timeout.as_secs()
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{ByteLen, MIB};

    use super::*;

    fn limits() -> Limits {
        Limits::new(&Settings {
            requests_in_flight_max: 2,
            bytes_in_flight_max: ByteLen(MIB),
            queue_timeout: Duration::from_millis(10),
            ..Settings::default()
        })
    }

    #[tokio::test]
    async fn a_request_beyond_the_limit_waits_and_then_fails_as_busy() {
        let limits = limits();
        let first = limits.acquire(0).await.unwrap();
        let _second = limits.acquire(0).await.unwrap();
        assert!(matches!(limits.acquire(0).await, Err(Error::Busy { .. })));
        drop(first);
        assert!(limits.acquire(0).await.is_ok());
    }

    #[tokio::test]
    async fn a_request_larger_than_the_limit_passes_alone() {
        let limits = limits();
        let large = limits.acquire(64 * MIB).await.unwrap();
        assert!(matches!(limits.acquire(1).await, Err(Error::Busy { .. })));
        drop(large);
        assert!(limits.acquire(1).await.is_ok());
    }
}
