//! Sends the messages for which files wait, one after the other.

use std::{pin::pin, sync::Arc, time::Duration};

use crate::fs::{
    FileSystem,
    publish::publisher::{Waiter, Waiting},
};

/// Sends until nobody waits. If it ends before that, with the runtime that it was to run on or by a
/// panic, whoever waits hears that nothing came of it.
#[derive(Debug)]
pub(super) struct Sender {
    fs: Arc<FileSystem>,
    is_over: bool,
}

/// Within which the server answers, unless it is busy or away: a program that closes a file does
/// not feel that it is looked after a signal only then.
const SOON: Duration = Duration::from_millis(20);

impl Sender {
    /// The one that is due now: nobody else sends.
    pub(super) fn new(fs: Arc<FileSystem>) -> Self {
        Self { fs, is_over: false }
    }

    /// Sends messages until nobody waits.
    pub(super) async fn run(mut self) {
        loop {
            let next = self.fs.publisher.next();
            if next.is_empty() {
                // Whoever puts the next file has another one sent from here on.
                self.is_over = true;
                return;
            }
            self.send(next).await;
        }
    }

    async fn send(&self, next: Vec<Waiting>) {
        let Some(first) = next.first() else { return };
        let session = first.file.operation.session;
        let (files, mut waiters): (Vec<_>, Vec<_>) =
            next.into_iter().map(|waiting| (waiting.file, waiting.waiter)).unzip();
        let mut published = pin!(self.fs.cluster.publish(session, &files));
        let made = match tokio::time::timeout(SOON, &mut published).await {
            Ok(made) => made,
            Err(_) => {
                waiters = waiters.into_iter().map(Waiter::by_itself).collect();
                self.fs.publisher.handle_slow();
                published.await
            }
        };
        for (waiter, made) in waiters.into_iter().zip(made) {
            waiter.hear(made);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.is_over {
            self.fs.publisher.give_up();
        }
    }
}
