//! Which sessions from before a restart have not said yet what they hold that is not logged.
//!
//! Each declares once for a life of the server, also when it holds nothing. Until all have, or have
//! ended, whatever one of them may hold is not given to others.

use std::collections::BTreeSet;

use millrace_types::SessionId;

/// Who is waited for.
#[derive(Debug, Default)]
pub struct Declarations {
    missing: BTreeSet<SessionId>,
}

impl Declarations {
    /// Starts after a restart with the sessions that were known before it.
    #[must_use]
    pub fn after_restart(known: impl IntoIterator<Item = SessionId>) -> Self {
        Self { missing: known.into_iter().collect() }
    }

    /// The session has declared everything, or has ended.
    pub fn handle_declared(&mut self, session: SessionId) {
        self.missing.remove(&session);
    }

    /// Nobody is waited for any longer; returns how many were.
    pub fn handle_over(&mut self) -> usize {
        std::mem::take(&mut self.missing).len()
    }

    /// Whether everybody has declared.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// How many have not.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_who_is_known_declares_or_ends() {
        let mut declarations = Declarations::after_restart([SessionId(1), SessionId(2)]);
        declarations.handle_declared(SessionId(9));
        assert_eq!((declarations.missing(), declarations.is_complete()), (2, false));
        declarations.handle_declared(SessionId(1));
        declarations.handle_declared(SessionId(1));
        assert_eq!(declarations.handle_over(), 1);
        assert!(declarations.is_complete());
    }
}
