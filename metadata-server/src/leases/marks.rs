//! Keys on which nothing is granted while a change waits for what it takes back.
//!
//! A mark lives until its change is made, and no longer than the request that made it, however that
//! ends: it is the request's to hold, and the table only looks whether it is still there.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_types::InodeId;
use tokio::sync::watch;

use super::Touch;

/// A change that waits until what it takes back was given back. Whoever holds a clone keeps the
/// marks.
#[derive(Debug, Clone)]
pub struct Wait {
    mark: Arc<Mark>,
    given_back: watch::Receiver<()>,
}

/// Stands for the request.
#[derive(Debug)]
struct Mark {
    /// What it changes.
    touches: Vec<Touch>,
    /// It has made its change.
    is_released: AtomicBool,
}

/// Part of what is waited for: gone when everybody who holds a clone has dropped it.
pub type Debt = Arc<watch::Sender<()>>;

/// The marks of all changes that wait.
#[derive(Debug, Default)]
pub struct Marks {
    by_key: HashMap<InodeId, Vec<Weak<Mark>>>,
    /// At how many keys those without a request are looked for.
    sweep_at: usize,
}

/// Below this many keys nobody looks for those that are left over.
const SWEEP_MIN: usize = 1024;

impl Wait {
    /// A change of `touches` that waits until every clone of the second is dropped.
    #[must_use]
    pub fn new(touches: Vec<Touch>) -> (Self, Debt) {
        let (sender, given_back) = watch::channel(());
        let mark = Arc::new(Mark { touches, is_released: AtomicBool::new(false) });
        (Self { mark, given_back }, Arc::new(sender))
    }

    /// Whether everybody has given this back. It was not granted since: its key is marked.
    #[must_use]
    pub fn has_settled(&self, touch: &Touch) -> bool {
        !self.mark.is_released() && self.is_over() && self.mark.touches.contains(touch)
    }

    /// The change is made: its keys are granted again, and nothing counts as given back for it any
    /// more.
    pub fn release(&self) {
        self.mark.is_released.store(true, Ordering::Relaxed);
    }

    /// Waits. May be dropped at any time, and called again.
    pub async fn given_back(&self) {
        let mut given_back = self.given_back.clone();
        // Nothing is ever sent: this ends when the last debt is dropped.
        while given_back.changed().await.is_ok() {}
    }

    /// Whether there is nothing left to wait for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.given_back.has_changed().is_err()
    }
}

impl Mark {
    fn is_released(&self) -> bool {
        // It is set and read by whoever has the table.
        self.is_released.load(Ordering::Relaxed)
    }
}

/// Whether the request still waits.
fn stands(mark: &Weak<Mark>) -> bool {
    mark.upgrade().is_some_and(|mark| !mark.is_released())
}

impl PartialEq for Wait {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mark, &other.mark)
    }
}

impl Eq for Wait {}

impl Marks {
    /// Nothing is granted on the key while the request waits.
    pub fn insert(&mut self, key: InodeId, wait: &Wait) {
        let marks = self.by_key.entry(key).or_default();
        marks.retain(stands);
        marks.push(Arc::downgrade(&wait.mark));
        if self.by_key.len() > self.sweep_at.max(SWEEP_MIN) {
            self.by_key.retain(|_, marks| marks.iter().any(stands));
            self.sweep_at = 2 * self.by_key.len();
        }
    }

    /// Whether a request waits for the key.
    pub fn is_marked(&mut self, key: InodeId) -> bool {
        let Some(marks) = self.by_key.get_mut(&key) else {
            return false;
        };
        marks.retain(stands);
        if marks.is_empty() {
            self.by_key.remove(&key);
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_goes_with_the_last_clone_of_its_request() {
        let mut marks = Marks::default();
        let (wait, _debt) = Wait::new(Vec::new());
        let other = wait.clone();
        marks.insert(InodeId(5), &wait);
        assert!(marks.is_marked(InodeId(5)) && !marks.is_marked(InodeId(6)));
        drop(wait);
        assert!(marks.is_marked(InodeId(5)));
        drop(other);
        assert!(!marks.is_marked(InodeId(5)));
        assert!(marks.by_key.is_empty());
    }

    #[test]
    fn a_change_that_is_made_marks_nothing_and_was_given_nothing_for_the_next() {
        let touch = Touch::Attributes { key: InodeId(5), inode: InodeId(5) };
        let mut marks = Marks::default();
        let (wait, debt) = Wait::new(vec![touch.clone()]);
        drop(debt);
        marks.insert(InodeId(5), &wait);
        assert!(wait.has_settled(&touch) && marks.is_marked(InodeId(5)));
        wait.release();
        assert!(!wait.has_settled(&touch) && !marks.is_marked(InodeId(5)));
    }

    #[test]
    fn what_is_left_over_is_swept() {
        let mut marks = Marks::default();
        let (held, _debt) = Wait::new(Vec::new());
        marks.insert(InodeId(1), &held);
        for key in 2..10 * u64::try_from(SWEEP_MIN).unwrap() {
            let (gone, _debt) = Wait::new(Vec::new());
            marks.insert(InodeId(key), &gone);
        }
        assert!(marks.by_key.len() <= 2 * SWEEP_MIN);
        assert!(marks.is_marked(InodeId(1)));
    }

    #[test]
    fn a_wait_is_over_when_the_last_debt_is_dropped() {
        let (wait, debt) = Wait::new(Vec::new());
        let second = Arc::clone(&debt);
        drop(debt);
        assert!(!wait.is_over());
        drop(second);
        assert!(wait.is_over());
    }
}
