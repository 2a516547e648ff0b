//! Signals to single threads, which interrupt what they wait for and do nothing else.

#![expect(
    unsafe_code,
    reason = "no safe interface to signals of threads is among the dependencies"
)]

use std::{mem, ptr};

use rustix::thread::Pid;

/// Lets the signal interrupt system calls of this process.
pub(crate) fn interrupt_calls() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: a structure of integers, for which zeros are right: no flags, and so no SA_RESTART.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = nothing;
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the handler does nothing, which any thread may do at any time.
    let set = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// Interrupts a thread of this process; one that has ended is not.
pub(crate) fn interrupt(thread: Pid) {
    let (process, thread) = (rustix::process::getpid(), thread.as_raw_nonzero().get());
    let process = process.as_raw_nonzero().get();
    // SAFETY: it touches no memory; its handler was set before.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
}
