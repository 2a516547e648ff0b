//! The numbers that stand for open files and directories between the kernel and the daemon.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_types::{ErrorKind, Failure};

/// Open things by their number. A number is never used twice in the life of a mount.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    open: HashMap<u64, Arc<T>>,
    last: u64,
}

impl<T> Handles<T> {
    /// No handles.
    pub(crate) fn new() -> Self {
        Self { table: Mutex::new(Table { open: HashMap::new(), last: 0 }) }
    }

    /// Gives a number to `thing`.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when [`HANDLES_MAX`] are open.
    pub(crate) fn insert(&self, thing: Arc<T>) -> Result<u64, Failure> {
        let mut table = self.lock();
        if table.open.len() >= HANDLES_MAX {
            return Err(Failure::new(ErrorKind::Busy, "too many open files on this mount"));
        }
        table.last += 1;
        let number = table.last;
        table.open.insert(number, thing);
        Ok(number)
    }

    /// What `number` stands for.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] when it stands for nothing.
    pub(crate) fn find(&self, number: u64) -> Result<Arc<T>, Failure> {
        self.lock().open.get(&number).cloned().ok_or_else(|| ErrorKind::Stale.into())
    }

    /// Takes a number back.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.lock().open.remove(&number)
    }

    /// Everything that is open, with its numbers.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<T>)> {
        self.lock().open.iter().map(|(&number, thing)| (number, Arc::clone(thing))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Open files and directories of one mount: as many as Linux lets one process have by far
/// (`fs.nr_open` is 1,048,576).
const HANDLES_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_thing_and_is_never_used_again() {
        let handles = Handles::new();
        let first = handles.insert(Arc::new("a")).expect("room");
        assert_eq!(*handles.find(first).expect("open"), "a");
        assert!(handles.remove(first).is_some());
        let second = handles.insert(Arc::new("b")).expect("room");
        assert_ne!(first, second);
        assert_eq!(handles.find(first).map_err(|f| f.kind), Err(ErrorKind::Stale));
        assert!(handles.remove(first).is_none());
        assert_eq!(handles.all().len(), 1);
    }
}
