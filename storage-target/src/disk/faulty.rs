//! Faults on request, before any disk: for tests of what an engine does when a call fails.
//!
//! Unlike [`super::simulated`] it works on the real engines too. A read, sync or growth that fails
//! has done nothing; a write has written its first half.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::{ALIGNMENT, Backing, Disk, DiskError, DiskQueue, Held, Operation, Piece, Request};

/// The faults to come. Clones are handles of the same ones, and one may serve many disks, one after
/// the other: an engine is opened again after a fault.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

/// What can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A request to the disk.
    Disk(Operation),
    /// A growth of what lies under it.
    Grow,
}

#[derive(Debug, Default)]
struct State {
    calls: u64,
    fault: Option<Fault>,
    fired: Option<Call>,
    /// With which error everything but reading fails.
    refused: Option<i32>,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    /// `None`: calls of any kind are counted.
    only: Option<Call>,
    left: u64,
    os_error: i32,
}

impl Faults {
    /// Lets the `nth` call of any kind from now on fail, once; 0 is the next one.
    pub fn fail_any(&self, nth: u64, os_error: i32) {
        self.set(Fault { only: None, left: nth, os_error });
    }

    /// Lets the `nth` request of this kind from now on fail, once; 0 is the next one. Replaces what
    /// was asked for before.
    pub fn fail(&self, operation: Operation, nth: u64, os_error: i32) {
        self.set(Fault { only: Some(Call::Disk(operation)), left: nth, os_error });
    }

    fn set(&self, fault: Fault) {
        let mut state = self.state();
        state.fault = Some(fault);
        state.fired = None;
    }

    /// Lets everything fail but reading, from now on; `None`: no more.
    pub fn refuse_changes(&self, os_error: Option<i32>) {
        self.state().refused = os_error;
    }

    /// What has failed since the last fault was asked for.
    #[must_use]
    pub fn fired(&self) -> Option<Call> {
        self.state().fired
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The disk, with these faults before it.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn before(&self, disk: &DiskQueue) -> DiskQueue {
        let disk = disk.disk().expect("a disk that has not ended");
        DiskQueue::new(Arc::new(FaultyDisk { faults: self.clone(), disk }))
    }

    /// What lies under the disk, likewise.
    #[must_use]
    pub fn before_growth(&self, backing: Arc<dyn Backing>) -> Arc<dyn Backing> {
        Arc::new(FaultyBacking { faults: self.clone(), backing })
    }

    /// Counts a call; returns the error that it shall have.
    fn count(&self, call: Call) -> Option<i32> {
        let mut state = self.state();
        state.calls += 1;
        if call != Call::Disk(Operation::Read) && state.refused.is_some() {
            return state.refused;
        }
        let is_meant = |fault: &&mut Fault| fault.only.is_none_or(|only| only == call);
        let fault = state.fault.as_mut().filter(is_meant)?;
        if fault.left > 0 {
            fault.left -= 1;
            return None;
        }
        state.fired = Some(call);
        state.fault.take().map(|fault| fault.os_error)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct FaultyDisk {
    faults: Faults,
    disk: Arc<dyn Disk>,
}

impl Disk for FaultyDisk {
    fn submit(&self, request: Request) {
        let operation = request.operation;
        let Some(os_error) = self.faults.count(Call::Disk(operation)) else {
            return self.disk.submit(request);
        };
        let offset = request.pieces.first().map_or(0, |piece| piece.offset);
        let source = io::Error::from_raw_os_error(os_error);
        let error = DiskError::from_io(operation, offset, 0, source);
        let half = first_half(&request.pieces);
        match &request.buffer {
            Held::Shared(buffer) if !half.is_empty() => {
                let buffer = Held::Shared(Arc::clone(buffer));
                self.fail_after(half, buffer, request, error);
            }
            _ => request.complete(Err(error)),
        }
    }

    fn name(&self) -> &'static str {
        self.disk.name()
    }
}

impl FaultyDisk {
    /// Writes a part; when that is done, whether it worked or not, the whole is told to have
    /// failed.
    fn fail_after(&self, part: Vec<Piece>, buffer: Held, whole: Request, error: DiskError) {
        let (reply, mut done) = oneshot::channel();
        let operation = Operation::Write;
        let part = Request { operation, pieces: part, buffer, reply, sync: None, _permit: None };
        self.disk.submit(part);
        if done.try_recv().is_ok() {
            return whole.complete(Err(error));
        }
        drop(tokio::spawn(async move {
            drop(done.await);
            whole.complete(Err(error));
        }));
    }
}

/// The first half of the pages.
fn first_half(pieces: &[Piece]) -> Vec<Piece> {
    let all: usize = pieces.iter().map(|piece| piece.range.len() / ALIGNMENT).sum();
    let mut left = all / 2 * ALIGNMENT;
    let mut half = Vec::new();
    for piece in pieces {
        let len = piece.range.len().min(left);
        if len > 0 {
            let range = piece.range.start..piece.range.start + len;
            half.push(Piece { offset: piece.offset, range });
        }
        left -= len;
    }
    half
}

#[derive(Debug)]
struct FaultyBacking {
    faults: Faults,
    backing: Arc<dyn Backing>,
}

impl Backing for FaultyBacking {
    fn len_bytes(&self) -> io::Result<u64> {
        self.backing.len_bytes()
    }

    fn room_bytes(&self) -> io::Result<u64> {
        self.backing.room_bytes()
    }

    fn grow(
        self: Arc<Self>,
        old_len: u64,
        new_len: u64,
    ) -> BoxFuture<'static, Result<(), DiskError>> {
        match self.faults.count(Call::Grow) {
            None => Arc::clone(&self.backing).grow(old_len, new_len),
            Some(os_error) => {
                let source = io::Error::from_raw_os_error(os_error);
                let len = usize::try_from(new_len - old_len).unwrap_or(usize::MAX);
                Box::pin(async move { Err(DiskError::growing(old_len, len, source)) })
            }
        }
    }

    fn unlock(&self) {
        self.backing.unlock();
    }

    fn release(&self) {
        self.backing.release();
    }
}
