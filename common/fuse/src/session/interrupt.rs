//! Waking threads that sleep in a read of the device.
//!
//! Nothing else ends such a read: closing a descriptor does not, and waiting for two things at once
//! would cost each request a system call more. So the thread gets SIGURG, which nobody misses: it
//! is ignored unless somebody asks for it. While this is going on it has a handler that does
//! nothing.

#![expect(unsafe_code, reason = "signals are libc's")]

use std::{
    io,
    mem::MaybeUninit,
    os::unix::thread::JoinHandleExt as _,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

/// Interrupts threads for as long as it is there; there is one at a time.
pub(super) struct Interrupter {
    before: libc::sigaction,
    _only: MutexGuard<'static, ()>,
}

impl Interrupter {
    /// # Errors
    /// What sigaction(2) says.
    pub(super) fn new() -> io::Result<Self> {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: all zeros is a valid value: no flags, so that calls are not begun again.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(libc::c_int) = nothing;
        action.sa_sigaction = handler as libc::sighandler_t;
        let mut before = action;
        // SAFETY: both point to whole structures, and the handler does nothing.
        if unsafe { libc::sigaction(libc::SIGURG, &raw const action, &raw mut before) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { before, _only: only })
    }

    /// Interrupts the system call that the thread is in, if it is in one.
    #[expect(clippy::unused_self, reason = "the handler must be there")]
    pub(super) fn interrupt<T>(&self, thread: &JoinHandle<T>) {
        // SAFETY: the thread was not joined, so that its name is valid, even if it has ended.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGURG) };
    }
}

impl Drop for Interrupter {
    fn drop(&mut self) {
        // SAFETY: it is what sigaction(2) gave.
        unsafe { libc::sigaction(libc::SIGURG, &raw const self.before, ptr::null_mut()) };
    }
}

extern "C" fn nothing(_: libc::c_int) {}
