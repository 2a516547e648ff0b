//! Which processes have written through a handle, so that a process that only inherited it need not
//! wait when it lets go.
//!
//! A program that starts another one passes copies of its descriptors on for a moment, and each
//! copy is flushed when the new program closes it, or when `exec` does. Waiting there for servers
//! that are away would keep the new program from starting, be it the one that brings the servers
//! back. What such a bystander leaves behind is flushed in the background, and by the writer's own
//! close.

use std::{
    fs,
    sync::{Mutex, PoisonError},
};

/// The threads that have written through one handle.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    threads: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    threads: Vec<u32>,
    /// Somebody has written who cannot be told from others.
    others: bool,
}

impl Writers {
    /// Records a write by `thread` before it begins: of one that is killed it goes on, and may end
    /// after the handle was closed. 0 is the kernel, or a process that is not visible from here.
    pub(crate) fn record(&self, thread: u32) {
        let mut known = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if known.others || known.threads.contains(&thread) {
            return;
        }
        if thread == 0 || known.threads.len() == THREADS_MAX {
            known.others = true;
        } else {
            known.threads.push(thread);
        }
    }

    /// Whether anybody has written, or has begun to.
    pub(crate) fn are_any(&self) -> bool {
        let known = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        known.others || !known.threads.is_empty()
    }

    /// Whether `thread` certainly belongs to a process that has not written: every writer is still
    /// alive, and in another process.
    pub(crate) fn is_bystander(&self, thread: u32) -> bool {
        let threads = {
            let known = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            if known.others || known.threads.is_empty() || known.threads.contains(&thread) {
                return false;
            }
            known.threads.clone()
        };
        let Some(own) = process_of(thread) else {
            return false;
        };
        threads.iter().all(|&writer| process_of(writer).is_some_and(|process| process != own))
    }
}

/// The process that a thread belongs to, while it lives.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// Writers that are told apart; with more, nobody is a bystander.
const THREADS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_that_inherited_the_handle_is_a_bystander_and_the_writer_is_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        let writers = Writers::default();
        assert!(!writers.is_bystander(child.id()), "nobody is known to have written");
        writers.record(std::process::id());
        assert!(writers.is_bystander(child.id()));
        assert!(!writers.is_bystander(std::process::id()));
        writers.record(0);
        assert!(!writers.is_bystander(child.id()), "the kernel may have written for anybody");
        drop(child.stdin.take());
        child.wait().expect("cat ends with its input");
    }

    #[test]
    fn a_writer_that_is_gone_leaves_the_waiting_to_whoever_closes() {
        let mut gone = Command::new("true").spawn().expect("true");
        gone.wait().expect("true ends");
        let writers = Writers::default();
        writers.record(gone.id());
        assert!(!writers.is_bystander(std::process::id()));
    }
}
