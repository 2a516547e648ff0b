//! Targets that try the bucket.

use std::{any::Any, sync::atomic::Ordering};

use millrace_object_source::Trial;
use millrace_protocol::{
    session::Done,
    target::{CheckBucket, Tried, TryBucket},
};
use millrace_types::{ErrorKind, Failure};

use super::TestServer;
use crate::hydration::import::spec_of;

impl TestServer {
    /// Does what a request wants if it is one of these, and gives others back.
    pub(super) async fn trial(
        &self,
        request: Box<dyn Any + Send>,
    ) -> Result<Result<Box<dyn Any + Send>, Failure>, Box<dyn Any + Send>> {
        let request = match request.downcast::<TryBucket>() {
            Ok(_) if self.troubles.are_older.load(Ordering::Relaxed) => {
                return Ok(Err(ErrorKind::NotSupported.into()));
            }
            Ok(request) => {
                return Ok(self
                    .try_bucket(*request)
                    .await
                    .map(|tried| Box::new(tried) as Box<dyn Any + Send>));
            }
            Err(request) => request,
        };
        match request.downcast::<CheckBucket>() {
            Ok(check) => {
                let CheckBucket { bucket, write } = *check;
                let request = TryBucket { bucket, read: false, write };
                let tried = self.try_bucket(request).await;
                Ok(tried.map(|_| Box::new(Done::default()) as Box<dyn Any + Send>))
            }
            Err(request) => Err(request),
        }
    }

    async fn try_bucket(&self, request: TryBucket) -> Result<Tried, Failure> {
        let bucket = self.buckets.bucket(&spec_of(&request.bucket)?)?;
        let trial = Trial { read: request.read, write: request.write, ..Trial::default() };
        let untried = bucket.try_out("", trial).await?;
        let untried = untried.iter().map(ToString::to_string).collect();
        Ok(Tried { deletes: false, untried })
    }
}
