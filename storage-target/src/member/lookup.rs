//! Looking names up while heartbeats go on.

use std::{fmt, time::Duration};

use futures::future::BoxFuture;

/// A lookup that is waited for a little at a time, and never begun twice at once.
pub(super) struct Lookup<T> {
    under_way: Option<BoxFuture<'static, T>>,
}

impl<T> Lookup<T> {
    /// What is found within `patience`; after that the next call waits on for the same.
    pub(super) async fn result<F>(
        &mut self,
        patience: Duration,
        begin: impl FnOnce() -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let lookup = self.under_way.get_or_insert_with(|| Box::pin(begin()));
        let found = tokio::time::timeout(patience, lookup).await.ok()?;
        self.under_way = None;
        Some(found)
    }
}

impl<T> Default for Lookup<T> {
    fn default() -> Self {
        Self { under_way: None }
    }
}

impl<T> fmt::Debug for Lookup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").field("is_under_way", &self.under_way.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_slow_lookup_holds_up_nobody_and_is_not_lost() {
        let (answer, answered) = oneshot::channel::<u8>();
        let mut lookup = Lookup::default();
        assert_eq!(lookup.result(Duration::ZERO, || answered).await, None);
        answer.send(7).unwrap();
        let again = || -> oneshot::Receiver<u8> { panic!("one is under way") };
        assert_eq!(lookup.result(Duration::ZERO, again).await, Some(Ok(7)));
        let next = || async { Ok(8) };
        assert_eq!(lookup.result(Duration::ZERO, next).await, Some(Ok(8)));
    }
}
