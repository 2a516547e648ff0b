//! Steps that keep failing: who waits for the end hears why there is none.

use std::collections::BTreeMap;

use millrace_types::{Failure, TargetId};

/// Attempts that failed in a row, from which on that is told: what passes by itself is not.
const ATTEMPTS_UNTOLD: u32 = 3;

/// What keeps targets from being given up, and how often in a row.
#[derive(Debug, Default)]
pub(super) struct Trouble(BTreeMap<TargetId, (u32, Failure)>);

impl Trouble {
    /// All that was left to do was tried.
    pub(super) fn handle_attempt(&mut self, target: TargetId, result: Result<(), Failure>) {
        match result {
            Ok(()) => drop(self.0.remove(&target)),
            Err(failure) => {
                let before = self.0.get(&target).map_or(0, |(count, _)| *count);
                self.0.insert(target, (before.saturating_add(1), failure));
            }
        }
    }

    /// Why it does not come to an end.
    pub(super) fn reason(&self, target: TargetId) -> Option<Failure> {
        let (_, failure) = self.0.get(&target).filter(|(count, _)| *count >= ATTEMPTS_UNTOLD)?;
        let text = format!(
            "target {target} is being given up, and a step of that fails: {failure}; it is tried \
             again every few seconds: remove what it fails by, and ask again how far it is"
        );
        Some(Failure::new(failure.kind, text))
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::ErrorKind;

    use super::*;

    #[test]
    fn what_fails_again_and_again_is_told_until_it_does_not() {
        let (target, other) = (TargetId([1; 8]), TargetId([2; 8]));
        let mut trouble = Trouble::default();
        let full = || Err(Failure::new(ErrorKind::NoSpace, "the log's disk is full"));
        for _ in 1..ATTEMPTS_UNTOLD {
            trouble.handle_attempt(target, full());
            assert_eq!(trouble.reason(target), None, "it may pass by itself");
        }
        trouble.handle_attempt(target, full());
        let told = trouble.reason(target).unwrap();
        assert_eq!(told.kind, ErrorKind::NoSpace);
        assert!(told.message.contains("the log's disk is full"), "{told}");
        assert_eq!(trouble.reason(other), None);
        trouble.handle_attempt(target, Ok(()));
        assert_eq!(trouble.reason(target), None);
    }
}
