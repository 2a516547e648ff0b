//! Where the engine's state is, and who has it.
//!
//! Turns run one after another: whoever has the seat's lock runs one. That is the engine's thread
//! for turns that had to wait, and the thread of whoever asks for turns that need not.
//!
//! A turn that panics may have left the state between two states of it. Nobody gets it any more
//! then: it is for the next start to make it anew, as after a kill.

use std::sync::{
    Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{AtomicBool, Ordering},
};

use millrace_types::Failure;

use super::{Core, Ended, StartError, Turn, run_turn};

/// The engine's state, for one at a time.
#[derive(Debug)]
pub(super) struct Seat {
    /// `None` once the engine has ended.
    core: Mutex<Option<Core>>,
    /// Whether the engine's thread waits for it with a turn, which nobody is to overtake.
    is_awaited: AtomicBool,
}

/// Takes the state away when the engine's thread ends, in whatever way.
#[derive(Debug)]
pub(super) struct Closing<'a>(&'a Seat);

impl Seat {
    pub(super) fn new(core: Core) -> Self {
        Self { core: Mutex::new(Some(core)), is_awaited: AtomicBool::new(false) }
    }

    /// Runs `work` here, if it `is_first` in the line, nobody else has a turn, and nothing is wrong
    /// that a turn would set right at length; gives it back otherwise.
    pub(super) fn run_at_once<T, W>(&self, is_first: bool, work: W) -> Result<Ended<T>, W>
    where
        W: FnOnce(&mut Core) -> Result<T, Failure>,
    {
        if !is_first || self.is_awaited.load(Ordering::Acquire) {
            return Err(work);
        }
        match self.core.try_lock() {
            Ok(mut core) => match core.as_mut() {
                Some(core) if core.broken().is_none() => Ok(run_turn(core, work)),
                _ => Err(work),
            },
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => Err(work),
        }
    }

    /// Runs a turn when it is free.
    ///
    /// # Errors
    /// [`StartError::Panicked`] when an earlier turn has.
    pub(super) fn run(&self, turn: Turn) -> Result<(), StartError> {
        self.is_awaited.store(true, Ordering::Release);
        let mut core = self.lock()?;
        self.is_awaited.store(false, Ordering::Release);
        if let Some(core) = core.as_mut() {
            turn(core);
        }
        Ok(())
    }

    /// For the engine's thread.
    pub(super) fn close_at_end(&self) -> Closing<'_> {
        Closing(self)
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<Core>>, StartError> {
        self.core.lock().map_err(|_| StartError::Panicked)
    }
}

impl Closing<'_> {
    /// Takes the state away to end it in order.
    ///
    /// # Errors
    /// [`StartError::Panicked`] when a turn has.
    pub(super) fn take(self) -> Result<Core, StartError> {
        let core = self.0.lock()?.take();
        core.ok_or(StartError::Panicked)
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        // After a panic likewise: what is dropped is on disk as after a kill.
        drop(self.0.core.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
