//! Commands, one after the other, as the engine executes them.

use std::sync::atomic::Ordering;

use millrace_types::{ErrorKind, Failure, LogIndex};

use super::TestServer;
use crate::{
    apply::apply,
    command::{Command, Envelope, Outcome},
    hydration::walk::refused,
    log::record::BODY_LEN_MAX,
    store::MetaStore,
};

impl TestServer {
    /// Executes a command, and before it what happens meanwhile.
    pub(super) fn execute_now(&self, command: Command, synced: bool) -> Result<Outcome, Failure> {
        for earlier in self.troubles.before(&command) {
            self.execute_one(earlier, false)?;
        }
        self.execute_one(command, synced)
    }

    fn execute_one(&self, command: Command, synced: bool) -> Result<Outcome, Failure> {
        self.troubles.check(&command)?;
        let mut store = self.store.lock().unwrap();
        let number = self.time.fetch_add(1, Ordering::Relaxed) + 1;
        let time = self.moment(number);
        let envelope = Envelope { time, operation: None, command };
        // The log takes none that is larger.
        if envelope.to_bytes().len() > BODY_LEN_MAX {
            return Err(ErrorKind::InvalidArgument.into());
        }
        let effect = apply(&*store, LogIndex(number), &envelope).map_err(refused)?;
        store.commit(&effect.batch).unwrap();
        self.written.note(&*store, &envelope.command, &effect.outcome).unwrap();
        let mut named = self.named.lock().unwrap();
        named.retain(|inode| !effect.raised.contains(inode));
        if synced {
            *self.settled.lock().unwrap() = time;
        }
        Ok(effect.outcome)
    }
}
