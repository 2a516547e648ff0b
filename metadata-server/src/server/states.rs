//! Requests about how files stand against their bucket, which hydration answers.

use millrace_protocol::{
    admin::{PathBytes, ShowState, StateReply},
    bucket::{FileReply, ShowFile},
    known_state::{KnownStateReply, ShowKnownState},
};
use millrace_types::Failure;

use super::{ServerEnvironment, hydrate::Hydrated};
use crate::{hydration::Hydration, ops::Client};

impl Hydrated for ShowState {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<StateReply, Failure> {
        hydration.show_state(&top, &self).await
    }
}

impl Hydrated for ShowKnownState {
    fn restrict(&mut self, client: &Client) {
        self.of.caller = client.caller(&self.of.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<KnownStateReply, Failure> {
        hydration.show_known_state(&top, &self).await
    }
}

impl Hydrated for ShowFile {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<FileReply, Failure> {
        hydration.show_file(&top, &self).await
    }
}
