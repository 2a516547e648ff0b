//! The kernel's side of a queue. It keeps the entries that the kernel may write to.

#![expect(unsafe_code, reason = "the kernel is given addresses, and believes them")]

use std::{
    fmt, io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use io_uring::{IoUring, cqueue, opcode, squeue::Entry128, types};
use rustix::io::Errno;

use super::{memory::Entry, queue::Answered};
use crate::protocol::ring::{COMMIT_AND_FETCH, REGISTER, RingCommand};

/// A ring, used by one thread. It is closed before the entries that it keeps are gone.
pub(super) struct Ring {
    io: IoUring<Entry128>,
    queue: u16,
    /// Those that the kernel has, by number.
    entries: Vec<Option<Entry>>,
    bell: types::Fd,
    /// Commands that the kernel has not seen yet.
    unsubmitted: usize,
}

/// What the kernel says.
#[derive(Debug)]
pub(super) enum Event {
    /// There is a request in this entry.
    Request(Entry),
    /// Somebody rang the bell.
    Woken,
    /// The kernel does not have that entry any more.
    Lost(u16, Errno),
}

impl Ring {
    /// A ring for a queue of the connection of `device`, whose thread the readable `bell` wakes. It
    /// does nothing before [`Self::begin`].
    ///
    /// # Errors
    /// When io_uring may not be used.
    pub(super) fn new(
        queue: u16,
        device: BorrowedFd<'_>,
        bell: BorrowedFd<'_>,
        entries: Vec<Entry>,
    ) -> Result<Self, Errno> {
        let slots = u32::try_from(entries.len() + 1).map_err(|_| Errno::NOMEM)?;
        // All work is done when the thread asks for it, on the thread.
        let io = IoUring::<Entry128>::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(slots)
            .map_err(errno)?;
        io.submitter().register_files(&[device.as_raw_fd()]).map_err(errno)?;
        let bell = types::Fd(bell.as_raw_fd());
        let entries = entries.into_iter().map(Some).collect();
        Ok(Self { io, queue, entries, bell, unsubmitted: 0 })
    }

    /// The queue's number.
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// Gives all entries to the kernel, which then knows this thread as the queue's.
    ///
    /// # Errors
    /// What the kernel says, when it takes none of them.
    pub(super) fn begin(&mut self) -> Result<(), Errno> {
        self.io.submitter().register_enable_rings().map_err(errno)?;
        // Spares looking up the descriptor with each call.
        if let Err(error) = self.io.submitter().register_ring_fd() {
            tracing::debug!(queue = self.queue, %error, "the ring is used by its descriptor");
        }
        let addresses: Vec<_> =
            self.entries.iter().map(|entry| entry.as_ref().map(Entry::addresses)).collect();
        for (index, addresses) in addresses.iter().enumerate() {
            let Some(addresses) = addresses else { continue };
            let command = RingCommand { queue: self.queue, ..RingCommand::default() };
            let submission =
                self.command(REGISTER, &command, Some(addresses)).user_data(index as u64);
            self.push(&submission);
        }
        self.watch_bell();
        // The addresses are read here. What is refused is known at once.
        self.submit()?;
        let mut refused = None;
        let mut others = Vec::new();
        loop {
            match self.next() {
                None => break,
                Some(Event::Lost(_, error)) => refused = Some(error),
                Some(other) => others.push(other),
            }
        }
        assert!(others.is_empty(), "nothing was waited for yet: {others:?}");
        match refused {
            Some(error) if self.entries.iter().all(Option::is_none) => Err(error),
            Some(error) => {
                let entries = self.entries.iter().flatten().count();
                tracing::warn!(queue = self.queue, entries, %error, "the kernel takes fewer");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Answers a request and gives its entry to the kernel, with the next system call.
    pub(super) fn commit(&mut self, answered: Answered) {
        let Answered { entry, unique } = answered;
        let index = entry.index();
        let command = RingCommand { flags: 0, commit_id: unique, queue: self.queue };
        let submission = self.command(COMMIT_AND_FETCH, &command, None).user_data(index.into());
        self.entries[usize::from(index)] = Some(entry);
        self.push(&submission);
    }

    /// What the kernel has said already.
    pub(super) fn next(&mut self) -> Option<Event> {
        let completion = self.io.completion().next()?;
        let Ok(index) = u16::try_from(completion.user_data()) else {
            if !cqueue::more(completion.flags()) {
                self.watch_bell();
            }
            return Some(Event::Woken);
        };
        let entry = self.entries.get_mut(usize::from(index)).and_then(Option::take);
        let entry = entry.expect("the kernel has it until it says something of it");
        Some(match completion.result() {
            0.. => Event::Request(entry),
            error => Event::Lost(index, Errno::from_raw_os_error(-error)),
        })
    }

    /// Whether the kernel has not seen everything.
    pub(super) fn has_unsubmitted(&self) -> bool {
        self.unsubmitted > 0
    }

    /// Shows the kernel what is to be done.
    ///
    /// # Errors
    /// When the ring is broken.
    pub(super) fn submit(&mut self) -> Result<(), Errno> {
        self.enter(0)
    }

    /// The same, and waits until the kernel has something to say.
    ///
    /// # Errors
    /// When the ring is broken.
    pub(super) fn wait(&mut self) -> Result<(), Errno> {
        self.enter(1)
    }

    fn enter(&mut self, events: usize) -> Result<(), Errno> {
        match self.io.submitter().submit_and_wait(events).map_err(errno) {
            Ok(_) => {}
            // A signal; or there is something to be taken first.
            Err(Errno::INTR | Errno::BUSY | Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
        self.unsubmitted = self.io.submission().len();
        Ok(())
    }

    fn watch_bell(&mut self) {
        let readable = u32::from(rustix::event::PollFlags::IN.bits());
        let watch = opcode::PollAdd::new(self.bell, readable).multi(true).build();
        self.push(&Entry128::from(watch.user_data(BELL)));
    }

    fn command(
        &self,
        number: u32,
        command: &RingCommand,
        addresses: Option<&[libc::iovec; 2]>,
    ) -> Entry128 {
        let mut area = [0; 80];
        area[..RingCommand::LEN].copy_from_slice(&command.encode());
        let start = addresses.map(|addresses| addresses.as_ptr() as u64);
        let mut submission = opcode::UringCmd80::new(DEVICE, number).cmd(area).addr(start).build();
        if let Some(addresses) = addresses {
            let len = u32::try_from(addresses.len()).expect("2");
            let place = (&raw mut submission).cast::<u8>();
            // SAFETY: a submission is 128 bytes as the kernel reads them, of which these four are
            // the number of addresses; the library has no name for them in a command.
            let place = unsafe { place.add(SUBMISSION_LEN_OFFSET) };
            // SAFETY: as above.
            unsafe { place.cast::<u32>().write_unaligned(len) };
        }
        submission
    }

    fn push(&mut self, submission: &Entry128) {
        // SAFETY: what it points to is memory of an entry, which lives until the kernel has
        // reported the entry or the ring is closed; and addresses of these, which live until it is
        // submitted.
        while unsafe { self.io.submission().push(submission) }.is_err() {
            // There is room for every entry and the bell; only what the kernel has not looked at
            // for some reason is in the way.
            if let Err(error) = self.submit() {
                tracing::error!(%error, "a ring is broken");
                return;
            }
        }
        self.unsubmitted += 1;
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernel = self.entries.iter().flatten().count();
        f.debug_struct("Ring").field("queue", &self.queue).field("kernel", &kernel).finish()
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The place of the device in the ring's table of files.
const DEVICE: types::Fixed = types::Fixed(0);
/// Marks what the bell says; entries have their numbers.
const BELL: u64 = u64::MAX;
/// Where the kernel has the length in a submission.
const SUBMISSION_LEN_OFFSET: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);
