//! What a session was answered to its exchanges about locks, so that one that arrives again,
//! however late, does nothing again.

use std::collections::BTreeMap;

use millrace_protocol::session::Operation;
use millrace_types::ErrorKind;

/// The answers that a session may still wait for. They span less than
/// [`Operation::SPAN_MAX`] numbers, because each operation does.
#[derive(Debug, Default)]
pub struct Answered {
    outcomes: BTreeMap<u64, Outcome>,
    /// Below it nobody waits.
    lowest: u64,
}

/// What came of an exchange: whether the lock is granted, or why it is not.
pub type Outcome = Result<bool, ErrorKind>;

impl Answered {
    /// What was answered to the operation, if it was; forgets what nobody waits for any more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an operation that nobody waits for any more.
    pub fn outcome(&mut self, operation: Operation) -> Result<Option<Outcome>, ErrorKind> {
        if operation.lowest_pending > self.lowest {
            self.lowest = operation.lowest_pending;
            self.outcomes = self.outcomes.split_off(&self.lowest);
        }
        if operation.sequence < self.lowest {
            return Err(ErrorKind::InvalidArgument);
        }
        Ok(self.outcomes.get(&operation.sequence).copied())
    }

    /// Remembers what was answered.
    pub fn record(&mut self, operation: Operation, outcome: Outcome) {
        self.outcomes.insert(operation.sequence, outcome);
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::SessionId;

    use super::*;

    #[test]
    fn an_answer_is_kept_until_nobody_waits_for_it() {
        let operation = |sequence, lowest_pending| Operation {
            session: SessionId(1),
            sequence,
            lowest_pending,
        };
        let mut answered = Answered::default();
        assert_eq!(answered.outcome(operation(4, 3)), Ok(None));
        answered.record(operation(4, 3), Err(ErrorKind::Locked));
        answered.record(operation(3, 3), Ok(true));
        assert_eq!(answered.outcome(operation(4, 3)), Ok(Some(Err(ErrorKind::Locked))));
        assert_eq!(answered.outcome(operation(9, 4)), Ok(None));
        assert_eq!(answered.outcome(operation(3, 1)), Err(ErrorKind::InvalidArgument));
        assert_eq!(answered.outcome(operation(4, 1)), Ok(Some(Err(ErrorKind::Locked))));
        assert_eq!(answered.outcomes.len(), 1);
    }
}
