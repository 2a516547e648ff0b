//! Tasks with names, which are joined and never just forgotten.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::task::TaskTracker;

/// A set of running tasks and threads. Cheap to clone; clones share the set.
#[derive(Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    running: Arc<Mutex<Running>>,
}

#[derive(Default)]
struct Running {
    next: u64,
    names: BTreeMap<u64, &'static str>,
}

impl Tasks {
    /// Starts a task on the current tokio runtime. A panic in it is logged as an error.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn<F>(&self, name: &'static str, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.spawn_on(&Handle::current(), name, task)
    }

    /// Starts a task on the given tokio runtime. A panic in it is logged as an error.
    pub fn spawn_on<F>(
        &self,
        runtime: &Handle,
        name: &'static str,
        task: F,
    ) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let entry = self.enter(name);
        let named = async move {
            let _entry = entry;
            task.await
        };
        self.tracker.spawn_on(named, runtime)
    }

    /// Starts a thread of the operating system. A panic in it is logged as an error.
    ///
    /// # Errors
    /// When the operating system has no thread left.
    pub fn spawn_thread<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<thread::JoinHandle<T>> {
        let entry = self.enter(name);
        let token = self.tracker.token();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _token = token;
            let _entry = entry;
            work()
        })
    }

    /// Waits until everything that was started has ended. May be dropped at any time.
    pub async fn join(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// The names of what still runs, in the order of starting.
    #[must_use]
    pub fn running(&self) -> Vec<&'static str> {
        self.lock().names.values().copied().collect()
    }

    fn enter(&self, name: &'static str) -> Entry {
        let mut running = self.lock();
        let number = running.next;
        running.next += 1;
        running.names.insert(number, name);
        Entry { tasks: self.clone(), number, name }
    }

    /// A panic elsewhere cannot leave the map of names broken.
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.running()).finish()
    }
}

/// Takes the name off the list when the task ends in whatever way.
struct Entry {
    tasks: Tasks,
    number: u64,
    name: &'static str,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.tasks.lock().names.remove(&self.number);
        if thread::panicking() {
            tracing::error!(task = self.name, "task panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn join_waits_for_tasks_and_threads() {
        let tasks = Tasks::default();
        let (task_go, task_wait) = oneshot::channel::<()>();
        let (thread_go, thread_wait) = oneshot::channel::<()>();
        drop(tasks.spawn("a task", task_wait));
        drop(tasks.spawn_thread("a thread", || thread_wait.blocking_recv()));
        assert_eq!(tasks.running(), ["a task", "a thread"]);
        let mut join = std::pin::pin!(tasks.join());
        assert!(futures_pending(join.as_mut()).await);
        task_go.send(()).unwrap();
        thread_go.send(()).unwrap();
        join.await;
        assert!(tasks.running().is_empty());
    }

    #[tokio::test]
    async fn a_task_that_panics_leaves_the_list() {
        let tasks = Tasks::default();
        let result = tasks.spawn("a bad task", async { panic!("on purpose") });
        assert!(result.await.is_err());
        tasks.join().await;
        assert!(tasks.running().is_empty());
    }

    async fn futures_pending(mut future: std::pin::Pin<&mut impl Future>) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(future.as_mut().poll(context).is_pending())
        })
        .await
    }
}
