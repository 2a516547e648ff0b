//! A thread with a single-threaded runtime, on which an endpoint and its requests run.

use std::{io, sync::Arc, thread};

use tokio::{runtime::Handle, sync::oneshot};

/// A running thread. Cheap to clone; the thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Reactor(Arc<Running>);

#[derive(Debug)]
struct Running {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
}

impl Reactor {
    /// Starts a thread called `name`.
    ///
    /// # Errors
    /// When the system gives no thread or no event queue.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Ends when the sender is dropped; what still runs then is dropped with the runtime.
            drop(runtime.block_on(stopped));
        })?;
        Ok(Self(Arc::new(Running { handle, stop: Some(stop) })))
    }

    /// For spawning tasks on the thread.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.0.handle
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}
