//! One WARN line for each refusal, unless somebody knocks too often.

use std::{
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

#[derive(Default)]
pub(super) struct Refusals(Mutex<Window>);

#[derive(Default)]
struct Window {
    begun: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Refusals {
    /// Logs that a peer, or a request of it, was refused and why.
    pub(super) fn warn(&self, remote: SocketAddr, why: &str) {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match window.next(Instant::now()) {
            Some(0) => tracing::warn!(%remote, why, "peer refused"),
            Some(left_out) => tracing::warn!(%remote, why, left_out, "peer refused"),
            None => {}
        }
    }
}

impl Window {
    /// Whether a line may be written now, and how many were left out before it.
    fn next(&mut self, now: Instant) -> Option<u64> {
        let fresh = self.begun.is_none_or(|begun| now - begun >= WINDOW);
        if fresh {
            self.begun = Some(now);
            self.lines = 0;
        }
        if self.lines >= LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

const WINDOW: Duration = Duration::from_secs(1);
const LINES_MAX: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_told_later() {
        let mut window = Window::default();
        let now = Instant::now();
        let told = (0..25).filter_map(|_| window.next(now)).count();
        assert_eq!(told, 10);
        assert_eq!(window.next(now + WINDOW), Some(15));
        assert_eq!(window.next(now + WINDOW), Some(0));
    }
}
