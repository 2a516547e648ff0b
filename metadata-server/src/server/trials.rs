//! Requests that have every host try a bucket.

use millrace_protocol::{
    admin::PathBytes,
    bucket::{CheckLink, CheckLinkReply, HostCheck, HostTrial, TryLink, TryLinkReply},
};
use millrace_types::Failure;

use super::{ServerEnvironment, hydrate::Hydrated};
use crate::{hydration::Hydration, ops::Client};

impl Hydrated for TryLink {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<TryLinkReply, Failure> {
        hydration.try_link(&self).await
    }
}

/// Of tools from before [`TryLink`].
impl Hydrated for CheckLink {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<CheckLinkReply, Failure> {
        let reply = hydration.try_link(&TryLink { path: self.path }).await?;
        let check = |HostTrial { host, took_ms, result }| {
            let result = result.map(|_| ());
            HostCheck { host, took_ms, result }
        };
        let hosts = reply.hosts.into_iter().map(check).collect();
        Ok(CheckLinkReply { bucket: reply.bucket, mode: reply.mode, hosts })
    }
}
