//! Requests of mounts that are an operation of another kind than most: a page of a directory, a
//! commit, a sync.

use std::sync::Arc;

use millrace_protocol::{metadata, session};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure};

use super::{
    MetadataService,
    answer::{Durability, Work, attempt, other},
    client,
    execute::NEEDS_MAX,
};
use crate::ops::{self, Client, Step};

impl MetadataService {
    /// Lists a page: of a linked directory that is being listed, what there is already.
    pub(super) fn read_directory(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let request = Arc::new(call.decode()?);
        Ok(other::<metadata::ReadDirectory>(self.directory_page(client(call), request)))
    }

    async fn directory_page(
        &self,
        mut client: Client,
        request: Arc<metadata::ReadDirectory>,
    ) -> Result<metadata::DirectoryPage, Failure> {
        for _ in 0..NEEDS_MAX {
            let (of_turn, caller) = (Arc::clone(&request), client.clone());
            let step =
                self.engine.turn(move |core| ops::directory::read(core, &caller, &of_turn)).await?;
            match step {
                // An empty page that is not the last would look like an end to a careless reader.
                Step::Done(page) if page.entries.is_empty() && !page.last => {
                    client.settled.clear();
                }
                Step::Done(page) => return Ok(page),
                Step::Need(need) => {
                    self.settle(client.host, need.clone(), request.cookie).await?;
                    client.settled.push(need);
                }
            }
        }
        Err(ErrorKind::Busy.into())
    }

    /// A commit that is an fsync waits for the sync.
    pub(super) fn commit(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let request = call.decode::<metadata::Commit>()?;
        let durability = if request.durable { Durability::Synced } else { Durability::Written };
        Ok(Work::Operation(durability, attempt(request, ops::commit::commit)))
    }

    /// fsync of a directory, sync(2): everything acknowledged so far.
    pub(super) fn sync(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        call.decode::<metadata::SyncMetadata>()?;
        Ok(other::<metadata::SyncMetadata>(async {
            // Everything written here is at least what the caller has seen.
            let index = self.engine.log_state().written;
            self.engine.synced(index).await?;
            Ok(session::Done { index })
        }))
    }
}
