//! The threads of a session: each has a receiver, and ends when nothing comes any more.

use std::{
    convert::Infallible,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::interrupt::Interrupter;
use crate::{
    abandoned,
    channel::{End, Received, Receiver, buffer::Pool, device::DeviceChannel, uring::UringChannel},
    dispatch::Dispatch,
    filesystem::FileSystem,
};

/// Threads that serve.
#[derive(Debug, Default)]
pub(super) struct Threads(Vec<JoinHandle<Result<End, Errno>>>);

impl Threads {
    /// Threads that read the device.
    ///
    /// # Errors
    /// When a thread cannot be started. Those that were go on until the session ends.
    pub(super) fn over_device<F: FileSystem>(
        dispatch: &Arc<Dispatch<F>>,
        device: &DeviceChannel,
        pool: &Arc<Pool>,
    ) -> io::Result<Self> {
        let mut threads = Self::default();
        for (index, receiver) in device.receivers(pool).into_iter().enumerate() {
            threads.start(format!("fuse-{index}"), dispatch, receiver, ())?;
        }
        Ok(threads)
    }

    /// A thread for each queue of `ring` and one for the device; several for the device where the
    /// kernel does not take the ring, which is what the second value says.
    ///
    /// # Errors
    /// When a thread cannot be started. Those that were go on until the session ends.
    pub(super) fn over_ring<F: FileSystem>(
        dispatch: &Arc<Dispatch<F>>,
        device: &DeviceChannel,
        ring: UringChannel,
        pool: &Arc<Pool>,
    ) -> io::Result<(Self, bool)> {
        let mut threads = Self::default();
        // When it is dropped the others end.
        let (classic, queues) = ring.receivers(device, pool);
        let (begun, results) = mpsc::channel();
        for (index, queue) in queues.into_iter().enumerate() {
            let name = format!("fuse-ring-{index}");
            threads.begin(name, dispatch, queue, begun.clone())?;
        }
        drop(begun);
        // Until now the kernel waits: with the last queue that begins, requests come.
        let refused = results.iter().filter_map(Result::err).last();
        let (session, ended) = mpsc::channel();
        threads.start("fuse-0".into(), dispatch, classic, session)?;
        threads.watch(dispatch, ended)?;
        if let Some(error) = refused {
            tracing::warn!(
                %error,
                "requests come through /dev/fuse: the kernel does not take the ring"
            );
            for (index, receiver) in device.receivers(pool).into_iter().enumerate().skip(1) {
                threads.start(format!("fuse-{index}"), dispatch, receiver, ())?;
            }
        }
        Ok((threads, refused.is_none()))
    }

    /// Starts a thread, which drops `held` when it ends.
    fn start<F: FileSystem>(
        &mut self,
        name: String,
        dispatch: &Arc<Dispatch<F>>,
        mut receiver: Box<dyn Receiver>,
        held: impl Send + 'static,
    ) -> io::Result<()> {
        let dispatch = Arc::clone(dispatch);
        let thread = thread::Builder::new().name(name).spawn(move || {
            let _held = held;
            receiver.begin()?;
            serve(&mut *receiver, &dispatch)
        })?;
        self.0.push(thread);
        Ok(())
    }

    /// The same, and says in `begun` whether anything will come. If not, others go on without it.
    fn begin<F: FileSystem>(
        &mut self,
        name: String,
        dispatch: &Arc<Dispatch<F>>,
        mut receiver: Box<dyn Receiver>,
        begun: mpsc::Sender<Result<(), Errno>>,
    ) -> io::Result<()> {
        let dispatch = Arc::clone(dispatch);
        let thread = thread::Builder::new().name(name).spawn(move || {
            let began = receiver.begin();
            // Who started this thread listens.
            begun.send(began).ok();
            drop(begun);
            if began.is_err() { Ok(End::Stopped) } else { serve(&mut *receiver, &dispatch) }
        })?;
        self.0.push(thread);
        Ok(())
    }

    /// Starts the thread that looks after callers, until the other end of `session` is dropped.
    fn watch<F: FileSystem>(
        &mut self,
        dispatch: &Arc<Dispatch<F>>,
        session: mpsc::Receiver<Infallible>,
    ) -> io::Result<()> {
        let dispatch = Arc::clone(dispatch);
        let thread = thread::Builder::new().name("fuse-callers".into()).spawn(move || {
            abandoned::interrupt(&dispatch.connection, &session);
            Ok(End::Stopped)
        })?;
        self.0.push(thread);
        Ok(())
    }

    /// Ends all threads that read `device`, and says how many have not ended by `deadline`: those
    /// are in an operation, and read nothing any more.
    ///
    /// # Errors
    /// When they cannot be woken.
    pub(super) fn stop(&mut self, device: &DeviceChannel, deadline: Instant) -> io::Result<usize> {
        let interrupter = Interrupter::new()?;
        device.stop();
        loop {
            let running = self.0.iter().filter(|thread| !thread.is_finished()).count();
            let is_read = (0..self.0.len()).any(|reader| device.is_read_by(reader));
            if running == 0 || !is_read && Instant::now() >= deadline {
                return Ok(running);
            }
            for (reader, thread) in self.0.iter().enumerate() {
                // Not what is in an operation: its own system calls would be interrupted.
                if device.is_read_by(reader) {
                    interrupter.interrupt(thread);
                }
            }
            thread::sleep(STOP_INTERVAL);
        }
    }

    pub(super) fn are_over(&self) -> bool {
        self.0.iter().all(JoinHandle::is_finished)
    }

    /// Waits until all have ended, and says why.
    ///
    /// # Errors
    /// When the channel broke.
    pub(super) fn join(&mut self) -> io::Result<End> {
        let mut ended = Ok(End::Stopped);
        for thread in self.0.drain(..) {
            match thread.join() {
                // What ends all of them is seen by one at least.
                Ok(Ok(end)) => ended = ended.map(|known| graver(known, end)),
                Ok(Err(error)) => ended = Err(error.into()),
                Err(_) => ended = Err(io::Error::other("a reading thread has panicked")),
            }
        }
        ended
    }
}

fn graver(one: End, other: End) -> End {
    let has = |end| one == end || other == end;
    let gravest = [End::Aborted, End::Unmounted].into_iter().find(|end| has(*end));
    gravest.unwrap_or(End::Stopped)
}

/// Reads requests until there are no more.
fn serve<F: FileSystem>(receiver: &mut dyn Receiver, dispatch: &Dispatch<F>) -> Result<End, Errno> {
    loop {
        match receiver.receive()? {
            Received::End(end) => return Ok(end),
            Received::Request(incoming) => {
                // Its reply is dropped on the way, which answers it.
                let served = catch_unwind(AssertUnwindSafe(|| dispatch.request(incoming)));
                if served.is_err() {
                    tracing::error!("an operation has panicked; its request is answered EIO");
                }
            }
        }
    }
}

/// A thread may fall asleep after it was woken, and is then woken again.
const STOP_INTERVAL: Duration = Duration::from_micros(200);
