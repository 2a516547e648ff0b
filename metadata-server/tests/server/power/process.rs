//! The threads of an engine, as if they were a process of their own: what it has begun goes on when
//! the run has ended, but nobody waits for it.
//!
//! An engine whose disk fails may wait for itself without an end: sled 0.34 does not wake who waits
//! for a buffer whose writing has failed, if the last of its writers had it written. A process that
//! is killed takes such threads with it. Here they stay until the test ends, and nothing of them
//! reaches the disk.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use millrace_metadata_server::store::{MetaStore, StoreError};
use rustix::io::Errno;

use super::world::World;

/// An engine with an open store, in a run of a world.
pub(super) struct Process {
    work: Option<Sender<Work>>,
    /// Closed when its thread has ended, with what it has panicked with in its last moments.
    ended: Receiver<Panic>,
    world: World,
}

type Work = Box<dyn FnOnce(&mut dyn MetaStore) + Send>;
type Panic = Box<dyn Any + Send>;

impl Process {
    /// Opens a store.
    ///
    /// # Errors
    /// What the engine says; that it has ended, when the run has.
    ///
    /// # Panics
    /// As the engine does, unless the run has ended; when it does not come to its end.
    pub(super) fn begin(
        world: World,
        open: impl FnOnce() -> Result<Box<dyn MetaStore>, StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        let (work, works) = channel::<Work>();
        let (opened, is_open) = channel();
        let (end, ended) = channel();
        let thread = move || match catch_unwind(AssertUnwindSafe(open)) {
            Ok(Ok(mut store)) => {
                // Who has opened it may have gone.
                drop(opened.send(Ok(Ok(()))));
                drop(opened);
                works.into_iter().for_each(|work| work(&mut *store));
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(store))) {
                    drop(end.send(panic));
                }
            }
            Ok(Err(error)) => drop(opened.send(Ok(Err(error)))),
            Err(panic) => drop(opened.send(Err(panic))),
        };
        thread::Builder::new().name("engine".to_owned()).spawn(thread).unwrap();
        let process = Self { work: Some(work), ended, world };
        process.wait_for(&is_open)?;
        Ok(process)
    }

    /// Has it do something.
    ///
    /// # Errors
    /// As [`Self::begin`].
    ///
    /// # Panics
    /// As [`Self::begin`].
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn MetaStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = channel();
        let work = move |store: &mut dyn MetaStore| {
            // Who has asked may have gone.
            drop(answer.send(catch_unwind(AssertUnwindSafe(|| work(store)))));
        };
        // One that has ended closes the other channel too.
        drop(self.work.as_ref().expect("only the drop takes it").send(Box::new(work)));
        self.wait_for(&answered)
    }

    fn wait_for<T>(
        &self,
        answered: &Receiver<Result<Result<T, StoreError>, Panic>>,
    ) -> Result<T, StoreError> {
        match self.receive(answered) {
            Some(Ok(said)) => said,
            Some(Err(panic)) if !self.world.is_over() => resume_unwind(panic),
            _ => Err(StoreError::Engine { engine: "ended", source: Errno::IO.into() }),
        }
    }

    /// What comes; nothing from one that has ended, or is left behind.
    fn receive<T>(&self, from: &Receiver<T>) -> Option<T> {
        let begun = Instant::now();
        let mut over = None;
        loop {
            match from.recv_timeout(LOOK) {
                Ok(received) => return Some(received),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.world.is_over() {
                if over.get_or_insert_with(Instant::now).elapsed() > GRACE {
                    left_behind();
                    return None;
                }
            } else {
                assert!(begun.elapsed() < PATIENCE, "the engine does not answer");
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.work = None;
        if thread::panicking() {
            return;
        }
        // It may run into the end of the run only now.
        if let Some(panic) = self.receive(&self.ended)
            && !self.world.is_over()
        {
            resume_unwind(panic);
        }
    }
}

#[expect(clippy::print_stderr, reason = "it is no failure")]
fn left_behind() {
    eprintln!("an engine waits for itself after the end of its run, and is left behind");
}

/// Between two looks at whether the run has ended.
const LOOK: Duration = Duration::from_millis(5);

/// How long an engine may take to hear that everything fails.
const GRACE: Duration = Duration::from_secs(3);

/// What takes longer hangs: some hundred small writes to memory, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
