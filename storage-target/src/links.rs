//! Which link leads to which bucket, as the metadata server says.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use millrace_object_source::{Bucket, Buckets, LinkSpec, Settings};
use millrace_protocol::cluster;
use millrace_types::{ErrorKind, Failure, LinkId};
use tokio::sync::{Notify, watch};

/// How long a request waits for a link that this host has not heard of: the next heartbeat tells.
const NEWS_WAIT: Duration = Duration::from_secs(5);

/// The links and the open buckets behind them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    buckets: Buckets,
    /// Read once, and not at each fetch.
    specs: RwLock<BTreeMap<LinkId, Result<LinkSpec, Failure>>>,
    version: watch::Sender<u64>,
    wanted: Notify,
}

impl Links {
    pub(crate) fn new(settings: Settings) -> Self {
        let inner = Inner {
            buckets: Buckets::new(settings),
            specs: RwLock::default(),
            version: watch::Sender::new(0),
            wanted: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The version held; 0 before the first.
    pub(crate) fn version(&self) -> u64 {
        *self.inner.version.borrow()
    }

    /// Takes what the metadata server answered.
    pub(crate) fn replace(&self, links: cluster::Links) {
        let specs = links.links.iter().map(|link| (link.id, spec(&link.bucket))).collect();
        *self.inner.specs.write().unwrap_or_else(PoisonError::into_inner) = specs;
        self.inner.version.send_replace(links.version);
    }

    /// Waits until a request needs a link that is not known.
    pub(crate) async fn wanted(&self) {
        self.inner.wanted.notified().await;
    }

    /// The bucket of a link. May be dropped at its await.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the metadata server does not tell of the link in time; those of
    /// opening the bucket.
    pub(crate) async fn bucket(&self, link: LinkId) -> Result<Arc<Bucket>, Failure> {
        let mut news = self.inner.version.subscribe();
        let wait = async {
            loop {
                if let Some(bucket) = self.known(link) {
                    return bucket;
                }
                self.inner.wanted.notify_one();
                if news.changed().await.is_err() {
                    return Err(ErrorKind::Unavailable.into());
                }
            }
        };
        let late = || Failure::new(ErrorKind::NotFound, format!("{link} is unknown to this host"));
        tokio::time::timeout(NEWS_WAIT, wait).await.unwrap_or_else(|_| Err(late()))
    }

    /// The bucket that a message describes.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn open(&self, bucket: &cluster::Bucket) -> Result<Arc<Bucket>, Failure> {
        let spec = spec(bucket)?;
        Ok(self.inner.buckets.bucket(&spec)?)
    }

    fn known(&self, link: LinkId) -> Option<Result<Arc<Bucket>, Failure>> {
        let specs = self.inner.specs.read().unwrap_or_else(PoisonError::into_inner);
        match specs.get(&link)? {
            Ok(spec) => Some(self.inner.buckets.bucket(spec).map_err(Failure::from)),
            Err(failure) => Some(Err(failure.clone())),
        }
    }
}

/// Reads the description of a bucket.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] or [`ErrorKind::NotSupported`].
pub(crate) fn spec(bucket: &cluster::Bucket) -> Result<LinkSpec, Failure> {
    Ok(LinkSpec::new(
        &bucket.url,
        bucket.endpoint.as_deref(),
        bucket.region.as_deref(),
        bucket.credentials.as_deref(),
    )?)
}
