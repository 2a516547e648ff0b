//! The same question of several programs at the same time, asked of the server once.
//!
//! Programs that work in one directory ask for it and its attributes several times for each file,
//! and where no lease covers those, each time was a message. An answer is right for everybody who
//! had asked before its question was sent. So who comes while some such questions are out does not
//! send one more, but joins the next one, which waits until one of those is answered.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use millrace_types::Failure;
use tokio::sync::Semaphore;

/// Questions of one kind, by what they ask for.
#[derive(Debug)]
pub(super) struct Together<K, V> {
    asked: Mutex<HashMap<K, Asked<V>>>,
}

#[derive(Debug)]
struct Asked<V> {
    /// Lets [`QUESTIONS_MAX`] out at a time.
    turns: Arc<Semaphore>,
    /// The question that is not sent yet.
    next: Option<Joined<V>>,
    /// How many wait for an answer. With the last of them this is gone.
    waiting: usize,
}

type Joined<V> = Shared<BoxFuture<'static, Result<V, Failure>>>;

/// Somebody who waits for an answer, until this is dropped.
struct Waiting<'a, K: Eq + Hash, V> {
    together: &'a Together<K, V>,
    key: K,
}

/// Questions that are out at the same time for the same thing. Fewer would have two programs wait
/// for each other's; more would save less where dozens ask.
const QUESTIONS_MAX: usize = 4;

impl<K, V> Default for Together<K, V> {
    fn default() -> Self {
        Self { asked: Mutex::default() }
    }
}

impl<K, V> Together<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The answer to a question for `key` that is sent after this was called: to this one, or one
    /// that was to be sent already. May be dropped at its await.
    ///
    /// # Errors
    /// Those of the question.
    pub(super) async fn ask<F>(
        self: &Arc<Self>,
        key: K,
        question: impl FnOnce() -> F,
    ) -> Result<V, Failure>
    where
        F: Future<Output = Result<V, Failure>> + Send + 'static,
    {
        let joined = self.join(&key, question);
        let waiting = Waiting { together: self, key };
        let answer = joined.await;
        drop(waiting);
        answer
    }

    fn join<F>(self: &Arc<Self>, key: &K, question: impl FnOnce() -> F) -> Joined<V>
    where
        F: Future<Output = Result<V, Failure>> + Send + 'static,
    {
        let mut table = self.lock();
        let asked = table.entry(key.clone()).or_insert_with(|| Asked {
            turns: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            next: None,
            waiting: 0,
        });
        asked.waiting += 1;
        let (this, turns) = (Arc::clone(self), Arc::clone(&asked.turns));
        let next = asked.next.get_or_insert_with(|| {
            let (key, question) = (key.clone(), question());
            let next = async move {
                let _turn = turns.acquire_owned().await.expect("it is never closed");
                // Who comes from here on may want to know more than this will be answered.
                if let Some(asked) = this.lock().get_mut(&key) {
                    asked.next = None;
                }
                question.await
            };
            next.boxed().shared()
        });
        next.clone()
    }
}

impl<K, V> Together<K, V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Asked<V>>> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, V> Drop for Waiting<'_, K, V> {
    fn drop(&mut self) {
        let mut table = self.together.lock();
        let asked = table.get_mut(&self.key).expect("it stays while somebody waits");
        asked.waiting -= 1;
        if asked.waiting == 0 {
            table.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use millrace_types::ErrorKind;
    use tokio::sync::Notify;

    use super::*;

    /// A server that counts questions and answers when it is told to.
    #[derive(Default)]
    struct Server {
        asked: AtomicU32,
        answers: Notify,
    }

    type Answers = Arc<Together<u32, u32>>;

    fn ask(together: &Answers, server: &Arc<Server>) -> BoxFuture<'static, Result<u32, Failure>> {
        let (together, server) = (Arc::clone(together), Arc::clone(server));
        let question = move || async move {
            let number = server.asked.fetch_add(1, Ordering::Relaxed);
            server.answers.notified().await;
            Ok(number)
        };
        async move { together.ask(7, question).await }.boxed()
    }

    #[tokio::test]
    async fn who_comes_while_questions_are_out_joins_the_one_that_is_sent_next() {
        let (together, server) = (Answers::default(), Arc::new(Server::default()));
        let out = u32::try_from(QUESTIONS_MAX).unwrap();
        let mut asking: Vec<_> = (0..out + 20).map(|_| ask(&together, &server)).collect();
        // Each has begun to wait in its order.
        for question in &mut asking {
            assert!((&mut *question).now_or_never().is_none());
        }
        assert_eq!(server.asked.load(Ordering::Relaxed), out, "the others are one question");
        server.answers.notify_one();
        let mut answers = Vec::new();
        for question in asking.drain(..1) {
            answers.push(question.await.unwrap());
        }
        let joined = tokio::spawn(futures::future::join_all(asking.split_off(3)));
        tokio::task::yield_now().await;
        assert_eq!(server.asked.load(Ordering::Relaxed), out + 1, "its turn has come");
        server.answers.notify_waiters();
        let all = joined.await.unwrap();
        assert!(all.iter().all(|answer| *answer == Ok(out)), "{all:?}");
        drop(asking);
        assert!(together.lock().is_empty());
    }

    #[tokio::test]
    async fn who_goes_away_takes_no_answer_from_others_and_leaves_nothing() {
        let (together, server) = (Answers::default(), Arc::new(Server::default()));
        let mut asking: Vec<_> = (0..QUESTIONS_MAX + 2).map(|_| ask(&together, &server)).collect();
        for question in &mut asking {
            assert!((&mut *question).now_or_never().is_none());
        }
        let last = asking.pop().unwrap();
        // Among them who began the question that the last one has joined.
        drop(asking);
        let last = tokio::spawn(last);
        tokio::task::yield_now().await;
        server.answers.notify_waiters();
        last.await.unwrap().unwrap();
        assert!(together.lock().is_empty());
    }

    #[tokio::test]
    async fn each_hears_of_a_failure() {
        let together = Answers::default();
        let failing = || async { Err(ErrorKind::NotFound.into()) };
        let answer = together.ask(1, failing).await;
        assert_eq!(answer.map_err(|failure| failure.kind), Err(ErrorKind::NotFound));
        assert_eq!(together.ask(1, || async { Ok(2) }).await, Ok(2));
    }
}
