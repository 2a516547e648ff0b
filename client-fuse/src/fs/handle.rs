//! One open of a file: what `open` was called with, and which failures it has reported.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use millrace_protocol::{metadata::OpenMode, session::Caller};
use millrace_types::{ContentGeneration, ErrorKind, Failure, SessionId};

use crate::fs::{
    file::{File, State},
    kept_pages::Renewal,
    writers::Writers,
};

/// An open file description.
#[derive(Debug)]
pub(crate) struct FileHandle {
    /// The file.
    pub(crate) file: Arc<File>,
    /// As the server counts it.
    pub(crate) mode: OpenMode,
    /// Who opened it.
    pub(crate) caller: Caller,
    /// How it is used.
    pub(crate) options: HandleOptions,
    /// Who has written through it.
    pub(crate) writers: Writers,
    /// Who knows that it is open. Held while the server is told.
    pub(crate) known: tokio::sync::Mutex<Known>,
    /// Failures that closes have told, and those that syncs have. What a sync tells no close tells
    /// again. Not so the other way round: copies of a descriptor are closed by who does not look,
    /// as in a child that becomes another program, and who syncs must hear of it.
    told_by_closes: AtomicU64,
    told_by_syncs: AtomicU64,
    /// Writes that were refused for failures: two for each of them at most.
    writes_refused: AtomicU64,
    /// A lock that was taken through it is lost.
    lock_lost: AtomicBool,
    /// The number of what its open has the kernel drop; 0 for none, or once that is done.
    renewal: AtomicU64,
    /// The version of the object that it was opened on, if the file had one.
    version: Option<(ContentGeneration, String)>,
}

/// To whom an open is known beside this mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// To nobody: a lease covers what it reads.
    Nobody,
    /// To the metadata server.
    Server(Told),
    /// To nobody, for it is closed.
    Closed,
}

/// To whom the metadata server counts an open, and since which life of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    /// The session.
    pub(crate) session: SessionId,
    /// The life of the server, or one before: opens for reading do not outlive it.
    pub(crate) incarnation: u64,
}

impl Known {
    /// Whether the server must be told, so that it knows of an open as `now` would say it.
    pub(crate) fn is_due(self, mode: OpenMode, now: Told) -> bool {
        match self {
            Self::Nobody => true,
            Self::Server(told) => {
                let is_lost = mode == OpenMode::Read && told.incarnation != now.incarnation;
                told.session != now.session || is_lost
            }
            Self::Closed => false,
        }
    }
}

/// Flags of `open` that matter after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HandleOptions {
    /// `O_DIRECT`: a write is answered when the targets have it; a read fetches what it asks for.
    pub(crate) direct: bool,
    /// `O_SYNC` or `O_DSYNC`: a write is answered when it is durable.
    pub(crate) sync: bool,
    /// `O_NOATIME`: what is read through it does not count as access.
    pub(crate) no_atime: bool,
}

impl HandleOptions {
    /// Reads the flags of `open`.
    pub(crate) fn from_flags(flags: i32) -> Self {
        Self {
            direct: flags & libc::O_DIRECT != 0,
            sync: flags & libc::O_DSYNC != 0,
            no_atime: flags & libc::O_NOATIME != 0,
        }
    }
}

impl FileHandle {
    /// A handle that reports the failures from now on.
    pub(crate) fn new(
        file: Arc<File>,
        mode: OpenMode,
        caller: Caller,
        options: HandleOptions,
        known: Known,
    ) -> Self {
        let (failures, version) = {
            let state = file.state();
            let version = state.access.as_ref().and_then(|access| {
                let origin = access.content.origin.as_ref()?;
                Some((access.content.generation, origin.tag.clone()))
            });
            (state.failures, version)
        };
        let [told_by_closes, told_by_syncs] = [failures; 2].map(AtomicU64::new);
        let writes_refused = AtomicU64::new(2 * failures);
        let known = tokio::sync::Mutex::new(known);
        let writers = Writers::default();
        let lock_lost = AtomicBool::new(false);
        Self {
            file,
            mode,
            caller,
            options,
            writers,
            known,
            told_by_closes,
            told_by_syncs,
            writes_refused,
            lock_lost,
            renewal: AtomicU64::new(0),
            version,
        }
    }

    /// Checks that what `state` shows of the file is of the version that the handle was opened on:
    /// of a file that followed its bucket since, this handle reads nothing more. To be asked before
    /// the size is looked at, which is that of the version that is shown.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`]. A truncation, which keeps the object, and an export, which keeps the
    /// content, are none.
    pub(crate) fn check_version(&self, state: &State) -> Result<(), Failure> {
        let Some(content) = &state.content else { return Ok(()) };
        let (Some((generation, tag)), Some(origin)) = (&self.version, &content.origin) else {
            return Ok(());
        };
        if content.generation == *generation || origin.tag == *tag {
            return Ok(());
        }
        let words = "the object changed in the bucket since the file was opened";
        Err(Failure::new(ErrorKind::Stale, words))
    }

    /// Its open, which is about to be answered, has the kernel drop its pages.
    pub(super) fn begin_renewal(&self, renewal: Renewal) {
        self.renewal.store(renewal.number(), Ordering::Release);
    }

    /// That open has returned: what it had the kernel drop, told once.
    pub(super) fn end_renewal(&self) -> Option<Renewal> {
        if self.renewal.load(Ordering::Acquire) == 0 {
            return None;
        }
        Renewal::from_number(self.renewal.swap(0, Ordering::AcqRel))
    }

    /// A lock that was taken through this handle is lost: others may have it by now, so that the
    /// handle is good for nothing but to be closed.
    pub(crate) fn lose_locks(&self) {
        self.lock_lost.store(true, Ordering::Release);
    }

    /// Checks that no lock of this handle is lost.
    ///
    /// # Errors
    /// [`ErrorKind::SessionGone`].
    pub(crate) fn check_locks(&self) -> Result<(), Failure> {
        if !self.lock_lost.load(Ordering::Acquire) {
            return Ok(());
        }
        let words = "a lock was lost with the session: close the file and begin anew";
        Err(Failure::new(ErrorKind::SessionGone, words))
    }

    /// Fails while there are failures that are to be told on such an occasion.
    ///
    /// # Errors
    /// The newest of them.
    pub(crate) fn check_told(&self, on: Occasion) -> Result<(), Failure> {
        failure_since(&self.file.state(), self.told(on).load(Ordering::Acquire))
    }

    /// What a program is answered now by what closes or syncs, of which this came: the newest of
    /// the failures that it has not been told, all of which it has been from here on. Not for an
    /// answer that nobody gets: who was interrupted asks again, and must hear of them then.
    ///
    /// # Errors
    /// They, or that of `outcome`.
    pub(crate) fn tell(&self, on: Occasion, outcome: Result<(), Failure>) -> Result<(), Failure> {
        let state = self.file.state();
        let seen = self.told(on).swap(state.failures, Ordering::AcqRel);
        if on == Occasion::Sync {
            self.told_by_closes.store(state.failures, Ordering::Release);
        }
        failure_since(&state, seen).and(outcome)
    }

    fn told(&self, on: Occasion) -> &AtomicU64 {
        match on {
            Occasion::Close => &self.told_by_closes,
            Occasion::Sync => &self.told_by_syncs,
        }
    }

    /// Fails for a write, twice for each burst of failures, which stays to be reported: of a long
    /// write the kernel makes several, and where a later one of them fails it tells the program how
    /// far it came and not why. The program's next write is the first of its own then, and fails
    /// again; those after it are taken.
    ///
    /// # Errors
    /// The newest of the failures.
    pub(crate) fn refuse_write(&self) -> Result<(), Failure> {
        let state = self.file.state();
        let seen = self.told_by_closes.load(Ordering::Acquire);
        // What was reported is told; of several at once the last is enough.
        let told = self.writes_refused.load(Ordering::Acquire).max(2 * seen);
        let told = told.max((2 * state.failures).saturating_sub(2));
        if told >= 2 * state.failures {
            return Ok(());
        }
        self.writes_refused.store(told + 1, Ordering::Release);
        failure_since(&state, seen)
    }
}

/// What tells a program of failures of what it wrote before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occasion {
    /// `close`, of whichever copy of the descriptor.
    Close,
    /// `fsync` and its like.
    Sync,
}

fn failure_since(state: &State, seen: u64) -> Result<(), Failure> {
    match &state.failure {
        Some(failure) if seen < state.failures => Err(failure.clone()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
