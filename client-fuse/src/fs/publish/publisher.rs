//! Files that wait for the next message to the server.

use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_protocol::{
    delegation::{NewFile, PUBLISHED_BYTES_MAX, PUBLISHED_MAX},
    lease::MadeName,
};
use millrace_types::Failure;
use tokio::sync::oneshot;

use crate::{cluster::Logged, fs::publish::close::Closing};

/// Files that wait for the next message.
#[derive(Debug, Default)]
pub(in crate::fs) struct Publisher {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// A message is on its way.
    is_sending: bool,
    /// It takes long: whoever waits has a task for that.
    is_slow: bool,
}

/// A file that the server is to hear of.
#[derive(Debug)]
pub(super) struct Waiting {
    /// As it is told.
    pub(super) file: NewFile,
    /// Who hears what became of it.
    pub(super) waiter: Waiter,
}

/// What became of a file: what the server answers, with where that stood in the log.
pub(super) type Published = Result<(MadeName, Logged), Failure>;

/// Who waits for what becomes of a file.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A task.
    Task(oneshot::Sender<Published>),
    /// A program at its close, without one.
    Close(Box<Closing>),
}

impl Waiter {
    /// From here on it has a task, that sees when the program is let go.
    pub(super) fn by_itself(self) -> Self {
        match self {
            Self::Close(closing) => Self::Task(closing.by_itself()),
            task @ Self::Task(_) => task,
        }
    }

    /// This became of the file.
    pub(super) fn hear(self, made: Published) {
        match self {
            // Whoever wanted to know may have gone.
            Self::Task(answer) => drop(answer.send(made)),
            Self::Close(closing) => closing.end(made),
        }
    }
}

impl Publisher {
    /// Takes one more; tells whether its caller sends it, with all that come meanwhile.
    pub(super) fn put(&self, mut waiting: Waiting) -> bool {
        let mut queue = self.lock();
        if queue.is_slow {
            waiting.waiter = waiting.waiter.by_itself();
        }
        queue.waiting.push(waiting);
        !std::mem::replace(&mut queue.is_sending, true)
    }

    /// What goes with the next message: files of one session. Nothing ends the sending.
    pub(super) fn next(&self) -> Vec<Waiting> {
        let mut queue = self.lock();
        let session = queue.waiting.first().map(|first| first.file.operation.session);
        let is_next = |waiting: &&Waiting| Some(waiting.file.operation.session) == session;
        let mut room = PUBLISHED_BYTES_MAX;
        let fits = |waiting: &&Waiting| {
            // One file fits however large it is, because it is the first.
            let had_room = room > 0;
            room = room.saturating_sub(waiting.file.inline.as_ref().map_or(0, Vec::len));
            had_room
        };
        let next = queue.waiting.iter().take(PUBLISHED_MAX).take_while(is_next);
        let count = next.take_while(fits).count();
        (queue.is_sending, queue.is_slow) = (count > 0, false);
        queue.waiting.drain(..count).collect()
    }

    /// Whether whoever waits should have a task.
    pub(super) fn is_slow(&self) -> bool {
        self.lock().is_slow
    }

    /// The message that is on its way takes long: whoever waits behind it has a task from now on,
    /// until the next one.
    pub(super) fn handle_slow(&self) {
        let mut queue = self.lock();
        queue.is_slow = true;
        let waiting = std::mem::take(&mut queue.waiting);
        let by_itself = |Waiting { file, waiter }| Waiting { file, waiter: waiter.by_itself() };
        queue.waiting = waiting.into_iter().map(by_itself).collect();
    }

    /// Nobody sends any more: whoever waits hears that nothing came of it.
    pub(super) fn give_up(&self) {
        let waiting = {
            let mut queue = self.lock();
            (queue.is_sending, queue.is_slow) = (false, false);
            std::mem::take(&mut queue.waiting)
        };
        // Not under the lock: files that are let go may be put again.
        drop(waiting);
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Each step leaves the queue whole, so that a panic elsewhere cannot have torn it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{
        capability::Signed,
        session::{Caller, Operation},
    };
    use millrace_types::{FileName, InodeId, KeyId, SessionId, Timestamp};

    use super::*;

    fn waiting(session: u64, end: u64) -> Waiting {
        let operation = Operation { session: SessionId(session), sequence: 0, lowest_pending: 0 };
        let file = NewFile {
            operation,
            caller: Caller::ROOT,
            parent: InodeId(1),
            name: FileName::parse(b"name").expect("a name"),
            mode: 0o644,
            made_at: Timestamp(0),
            content: Signed { key: KeyId(1), body: Vec::new(), mac: [0; 32] },
            end,
            written_at: None,
            inline: None,
        };
        Waiting { file, waiter: Waiter::Task(oneshot::channel().0) }
    }

    fn next(publisher: &Publisher) -> Vec<u64> {
        publisher.next().iter().map(|waiting| waiting.file.end).collect()
    }

    #[test]
    fn a_message_has_so_many_bytes_and_always_one_file() {
        let publisher = Publisher::default();
        let with = |end, len| {
            let mut waiting = waiting(1, end);
            waiting.file.inline = Some(vec![0; len]);
            waiting
        };
        publisher.put(with(1, PUBLISHED_BYTES_MAX * 2));
        publisher.put(with(2, PUBLISHED_BYTES_MAX / 2));
        publisher.put(with(3, PUBLISHED_BYTES_MAX / 4));
        publisher.put(with(4, PUBLISHED_BYTES_MAX / 2));
        publisher.put(with(5, 1));
        assert_eq!(next(&publisher), [1]);
        assert_eq!(next(&publisher), [2, 3, 4]);
        assert_eq!(next(&publisher), [5]);
    }

    #[test]
    fn who_comes_while_a_message_is_on_its_way_goes_with_the_next() {
        let publisher = Publisher::default();
        assert!(publisher.put(waiting(1, 1)), "nobody sends");
        assert_eq!(next(&publisher), [1]);
        assert!(!publisher.put(waiting(1, 2)));
        assert!(!publisher.put(waiting(1, 3)));
        assert_eq!(next(&publisher), [2, 3]);
        assert!(next(&publisher).is_empty());
        assert!(publisher.put(waiting(1, 4)), "nobody sends any more");
    }

    #[test]
    fn who_waits_for_a_sender_that_is_gone_hears_so_and_the_next_one_sends() {
        let publisher = Publisher::default();
        assert!(publisher.put(waiting(1, 1)));
        assert_eq!(next(&publisher), [1]);
        publisher.handle_slow();
        let (answer, mut answered) = oneshot::channel();
        let waiter = Waiter::Task(answer);
        assert!(!publisher.put(Waiting { waiter, ..waiting(1, 2) }));
        publisher.give_up();
        assert!(matches!(answered.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(!publisher.is_slow());
        assert!(publisher.put(waiting(1, 3)), "nobody sends any more");
        assert_eq!(next(&publisher), [3]);
    }

    #[test]
    fn a_message_is_of_one_session_and_holds_so_many() {
        let publisher = Publisher::default();
        let most = u64::try_from(PUBLISHED_MAX).expect("a few");
        for end in 0..=most {
            publisher.put(waiting(1, end));
        }
        publisher.put(waiting(2, 100));
        assert_eq!(next(&publisher).len(), PUBLISHED_MAX);
        assert_eq!(next(&publisher), [most]);
        assert_eq!(next(&publisher), [100]);
        assert!(next(&publisher).is_empty());
    }
}
