//! The desk of a queue: what was asked is waited for here, and what is answered is left here.

use std::{
    io::IoSlice,
    mem,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

use super::memory::Entry;
use crate::{channel::End, protocol::header::ReplyHeader, wire::Wire as _};

/// What the thread of a queue shares with those who answer.
#[derive(Debug)]
pub(super) struct Queue {
    desk: Mutex<Desk>,
    /// Wakes the thread.
    bell: OwnedFd,
}

#[derive(Debug)]
struct Desk {
    /// By the number of the entry.
    requests: Vec<State>,
    answered: Vec<Answered>,
    /// The thread waits in the kernel, and does not see what is left here.
    is_asleep: bool,
    end: Option<End>,
}

/// An entry with an answer, on its way to the kernel.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) entry: Entry,
    /// Which request is answered.
    pub(super) unique: u64,
}

/// Of one entry.
#[derive(Debug)]
enum State {
    /// It has no request, or one that is answered.
    Free,
    /// The request waits for its answer.
    Waiting { unique: u64, entry: Entry },
    /// The same, and its operation reads the data where the kernel has put it. An answer stays
    /// aside until the operation has returned.
    Lent { unique: u64, answer: Option<Box<[u8]>> },
}

impl Queue {
    pub(super) fn new(entries: u16) -> Result<Self, Errno> {
        let requests = (0..entries).map(|_| State::Free).collect();
        let desk = Desk { requests, answered: Vec::new(), is_asleep: false, end: None };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { desk: Mutex::new(desk), bell })
    }

    /// Readable from the first time on that the thread was woken.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// A request was read out of `entry`.
    pub(super) fn wait_for_answer(&self, unique: u64, entry: Entry) {
        let index = usize::from(entry.index());
        self.desk().requests[index] = State::Waiting { unique, entry };
    }

    /// A request is being read in the entry itself.
    pub(super) fn lend(&self, unique: u64, index: u16) {
        self.desk().requests[usize::from(index)] = State::Lent { unique, answer: None };
    }

    /// The entry is not read any more.
    pub(super) fn give_back(&self, mut entry: Entry) {
        let index = usize::from(entry.index());
        let mut desk = self.desk();
        let state = mem::replace(&mut desk.requests[index], State::Free);
        let State::Lent { unique, answer } = state else { unreachable!("it was lent") };
        let Some(answer) = answer else {
            desk.requests[index] = State::Waiting { unique, entry };
            return;
        };
        let (header, body) = answer.split_at(ReplyHeader::LEN);
        entry.put_answer(header, &[IoSlice::new(body)]).expect("looked at when it was left");
        // By the thread itself, which is awake.
        desk.answered.push(Answered { entry, unique });
    }

    /// Leaves the answer to the request in that entry, from any thread.
    ///
    /// # Errors
    /// ENOENT when there is no such request any more, EINVAL when the answer is too long, and
    /// ENODEV when all is over.
    pub(super) fn answer(&self, index: u16, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let (header, body) = parts.split_first().ok_or(Errno::INVAL)?;
        let unique = ReplyHeader::get(header).ok_or(Errno::INVAL)?.unique;
        let mut desk = self.desk();
        if desk.end.is_some() {
            return Err(Errno::NODEV);
        }
        let state = desk.requests.get_mut(usize::from(index)).ok_or(Errno::NOENT)?;
        match state {
            State::Lent { unique: asked, answer: answer @ None } if *asked == unique => {
                let len: usize = parts.iter().map(|part| part.len()).sum();
                // What is lent has a longer payload than this.
                if header.len() != ReplyHeader::LEN || len > LENT_ANSWER_MAX {
                    return Err(Errno::INVAL);
                }
                *answer = Some(parts.iter().flat_map(|part| part.iter().copied()).collect());
                return Ok(());
            }
            State::Waiting { unique: asked, .. } if *asked == unique => {}
            _ => return Err(Errno::NOENT),
        }
        let State::Waiting { mut entry, .. } = mem::replace(state, State::Free) else {
            unreachable!("a moment ago it was")
        };
        // A large answer is copied, and others need not wait for that.
        drop(desk);
        let put = entry.put_answer(header, body);
        let mut desk = self.desk();
        if let Err(error) = put {
            desk.requests[usize::from(index)] = State::Waiting { unique, entry };
            return Err(error);
        }
        desk.answered.push(Answered { entry, unique });
        let is_asleep = mem::take(&mut desk.is_asleep);
        drop(desk);
        if is_asleep {
            self.ring_bell();
        }
        Ok(())
    }

    /// The request in that entry wants no answer: an empty one gives the entry back.
    pub(super) fn release(&self, index: u16, unique: u64) {
        let len = u32::try_from(ReplyHeader::LEN).expect("16");
        let header = ReplyHeader { len, error: 0, unique }.encode();
        // When all is over there is nothing to give back.
        self.answer(index, &[IoSlice::new(&header)]).ok();
    }

    /// What was left here since the last time. Says why, if nothing will come any more.
    pub(super) fn collect(&self, into: &mut Vec<Answered>) -> Option<End> {
        let mut desk = self.desk();
        desk.is_asleep = false;
        into.append(&mut desk.answered);
        desk.end
    }

    /// From now on the thread must be woken. `false` when there is something to collect.
    pub(super) fn fall_asleep(&self) -> bool {
        let mut desk = self.desk();
        desk.is_asleep = desk.answered.is_empty() && desk.end.is_none();
        desk.is_asleep
    }

    /// All is over: nothing comes any more, and nothing is answered.
    pub(super) fn end(&self, end: End) {
        self.desk().end.get_or_insert(end);
        self.ring_bell();
    }

    fn ring_bell(&self) {
        // It cannot be full: nobody lives to see that.
        if let Err(error) = rustix::io::write(&self.bell, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "the thread of a queue cannot be woken");
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // It is whole between any two statements that could panic.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The longest answer to a request whose data is not copied: those of WRITE are much shorter.
const LENT_ANSWER_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::{super::memory::entries, *};

    fn header(unique: u64, len: usize) -> [u8; ReplyHeader::LEN] {
        let len = u32::try_from(ReplyHeader::LEN + len).unwrap();
        ReplyHeader { len, error: 0, unique }.encode()
    }

    fn answer(queue: &Queue, index: u16, unique: u64, body: &[u8]) -> Result<(), Errno> {
        let header = header(unique, body.len());
        queue.answer(index, &[IoSlice::new(&header), IoSlice::new(body)])
    }

    fn collected(queue: &Queue) -> Vec<(u16, u64, Vec<u8>)> {
        let mut answered = Vec::new();
        queue.collect(&mut answered);
        let read = |answered: &Answered| {
            (answered.entry.index(), answered.unique, answered.entry.payload(3).to_vec())
        };
        answered.iter().map(read).collect()
    }

    #[test]
    fn a_request_is_answered_once() {
        let queue = Queue::new(2).unwrap();
        let mut entries = entries(2, 8192).unwrap();
        assert_eq!(answer(&queue, 1, 8, b""), Err(Errno::NOENT), "not read yet");
        queue.wait_for_answer(8, entries.remove(1));
        assert_eq!(answer(&queue, 1, 10, b""), Err(Errno::NOENT), "another one");
        assert_eq!(answer(&queue, 2, 8, b""), Err(Errno::NOENT), "no such entry");
        assert_eq!(answer(&queue, 1, 8, &[0; 9000]), Err(Errno::INVAL), "it still waits");
        assert_eq!(answer(&queue, 1, 8, b"abc"), Ok(()));
        assert_eq!(answer(&queue, 1, 8, b"def"), Err(Errno::NOENT));
        assert_eq!(collected(&queue), [(1, 8, b"abc".to_vec())]);
        assert_eq!(collected(&queue), []);
    }

    #[test]
    fn an_answer_waits_until_the_data_is_not_read_any_more() {
        let queue = Queue::new(1).unwrap();
        let mut all = entries(1, 8192).unwrap();
        let entry = all.remove(0);
        queue.lend(8, 0);
        assert_eq!(answer(&queue, 0, 8, b"abc"), Ok(()));
        assert_eq!(answer(&queue, 0, 8, b"def"), Err(Errno::NOENT));
        assert_eq!(entry.payload(3), [0; 3]);
        assert_eq!(collected(&queue), []);
        queue.give_back(entry);
        assert_eq!(collected(&queue), [(0, 8, b"abc".to_vec())]);
        let entry = entries(1, 8192).unwrap().remove(0);
        queue.lend(10, 0);
        queue.give_back(entry);
        assert_eq!(answer(&queue, 0, 10, b"def"), Ok(()), "later, as any other");
        assert_eq!(collected(&queue), [(0, 10, b"def".to_vec())]);
    }

    #[test]
    fn who_sleeps_is_woken_once_and_who_has_something_to_do_does_not_sleep() {
        let queue = Queue::new(2).unwrap();
        for (entry, unique) in entries(2, 8192).unwrap().into_iter().zip([8, 10]) {
            queue.wait_for_answer(unique, entry);
        }
        let rings = || {
            let mut count = [0; 8];
            rustix::io::read(queue.bell(), &mut count).map(|_| u64::from_ne_bytes(count))
        };
        assert!(queue.fall_asleep());
        answer(&queue, 0, 8, b"").unwrap();
        answer(&queue, 1, 10, b"").unwrap();
        assert_eq!(rings(), Ok(1));
        assert!(!queue.fall_asleep());
        assert_eq!(collected(&queue).len(), 2);
        assert!(queue.fall_asleep());
        queue.end(End::Aborted);
        assert_eq!(rings(), Ok(1));
        assert!(!queue.fall_asleep());
        queue.end(End::Unmounted);
        assert_eq!(queue.collect(&mut Vec::new()), Some(End::Aborted), "the first counts");
        assert_eq!(answer(&queue, 0, 8, b""), Err(Errno::NODEV));
    }
}
