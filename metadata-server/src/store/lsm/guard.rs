//! The tree's errors and panics, as errors of a store.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{ENGINE, StoreError};

/// What the tree does, with its panics as errors.
pub(super) fn guarded<T>(work: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, StoreError> {
    let source = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(lsm_tree::Error::Io(error))) => error,
        Ok(Err(error)) => io::Error::other(error),
        Err(panic) => io::Error::other(format!("it panicked: {}", words(&*panic))),
    };
    Err(StoreError::Engine { engine: ENGINE, source })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}
