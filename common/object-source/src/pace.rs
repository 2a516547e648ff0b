//! How slowly a body may come before it is given up.
//!
//! A server that sends a byte now and then is never silent for long: without this, who waits for
//! the last byte would wait for days. Only the time that is spent waiting for the server counts,
//! not that in which nobody wants bytes.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

/// Bytes in a second, on the average over the patience, below which a body is given up: far less
/// than any line that is good for anything.
const RATE_MIN: f64 = 1024.0;

/// The pace of one body.
#[derive(Debug)]
pub(crate) struct Pace {
    patience: Duration,
    /// Fires when the time of waiting for the server is the patience.
    timer: Pin<Box<Sleep>>,
    /// What is left of the patience, while nobody waits.
    left: Option<Duration>,
    /// Bytes since the patience was last whole.
    arrived: u64,
}

impl Pace {
    pub(crate) fn new(patience: Duration) -> Self {
        let timer = Box::pin(sleep(patience));
        Self { patience, timer, left: Some(patience), arrived: 0 }
    }

    pub(crate) fn arrived(&mut self, bytes: u64) {
        if self.left.is_none() {
            let left = self.timer.deadline().saturating_duration_since(Instant::now());
            self.left = Some(left);
        }
        self.arrived += bytes;
    }

    /// Waits along with the body. Ready when that comes too slowly.
    pub(crate) fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(left) = self.left.take() {
            self.timer.as_mut().reset(Instant::now() + left);
        }
        loop {
            std::task::ready!(self.timer.as_mut().poll(cx));
            let floor = self.patience.as_secs_f64() * RATE_MIN;
            if (self.arrived as f64) < floor {
                return Poll::Ready(());
            }
            self.arrived = 0;
            self.timer.as_mut().reset(Instant::now() + self.patience);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Longer than a busy machine lets a test wait for its turn.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// Whether a body is given up that brings so many bytes each 100 ms, for five seconds.
    async fn is_given_up(bytes: u64) -> bool {
        let mut pace = Pace::new(PATIENCE);
        for _ in 0..50 {
            let come = sleep(PATIENCE / 10);
            tokio::select! {
                () = come => pace.arrived(bytes),
                () = poll_fn(|cx| pace.poll_too_slow(cx)) => return true,
            }
        }
        false
    }

    #[tokio::test]
    async fn a_body_that_drips_is_given_up_and_a_slow_one_is_not() {
        let given_up = tokio::join!(is_given_up(0), is_given_up(1), is_given_up(10_000));
        assert_eq!(given_up, (true, true, false));
    }

    #[tokio::test]
    async fn time_in_which_nobody_waits_does_not_count() {
        let mut pace = Pace::new(PATIENCE);
        sleep(PATIENCE * 2).await;
        let slow = poll_fn(|cx| Poll::Ready(pace.poll_too_slow(cx).is_ready()));
        assert!(!slow.await, "it has only begun to wait");
    }
}
