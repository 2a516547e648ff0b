//! Tells the service manager how the daemon fares: ready, status, watchdog, stopping.
//!
//! Speaks the notification protocol of systemd (units with `Type=notify`). Without `NOTIFY_SOCKET`
//! in the environment every function here does nothing. A failure to notify is logged and changes
//! nothing else: the daemon's work does not depend on its manager.

use std::{future::Future, time::Duration};

use sd_notify::NotifyState;

/// How often a start that goes on asks for more time.
const EXTEND_PERIOD: Duration = Duration::from_secs(10);

/// How much it asks for: the start may hold its thread for several periods.
const EXTEND_BY: Duration = Duration::from_secs(60);

/// The daemon serves. Call it once, when requests are accepted and recovery is done.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(one_line(status))]);
}

/// One line about what the daemon does now; `systemctl status` shows it.
pub fn status(status: &str) {
    notify(&[NotifyState::Status(one_line(status))]);
}

/// The daemon has begun to drain and will exit.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Waits for a start that may take longer than the unit allows: asks for more time at once, and
/// again every ten seconds until it has ended.
///
/// Without that a recovery would be cut off, begun anew by the next start, and never come to its
/// end. May be dropped at any time; nothing is asked for from then on.
pub async fn during_start<F: Future>(start: F) -> F::Output {
    asking_for_time(start, extend_start).await
}

async fn asking_for_time<F: Future>(start: F, mut ask: impl FnMut(Duration)) -> F::Output {
    tokio::pin!(start);
    let mut ticks = tokio::time::interval(EXTEND_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // The first tick comes at once, before the start has the thread.
            biased;
            _ = ticks.tick() => ask(EXTEND_BY),
            ended = &mut start => return ended,
        }
    }
}

/// Asks for `more` time from now on. What the unit allows beyond that is not cut short by it.
fn extend_start(more: Duration) {
    let micros = u32::try_from(more.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(micros)]);
}

/// Feeds the watchdog for as long as `healthy` answers, until the future is dropped.
///
/// Returns at once when the unit has no `WatchdogSec=`. `healthy` must pass through the daemon's
/// own loop (a request to itself), so that a daemon that hangs is restarted; it is asked twice per
/// watchdog period, and an answer that takes longer than the period is the hang that is looked for.
/// May be dropped at any time.
pub async fn watchdog<F>(mut healthy: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    let Some(period) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut ticks = tokio::time::interval(period / 2);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if healthy().await {
            notify(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("health check fails, the watchdog is not fed");
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// The protocol ends a field at a line's end, so a status must be one line.
fn one_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_several_lines_is_cut_to_the_first() {
        assert_eq!(one_line("serving\nREADY=1"), "serving");
        assert_eq!(one_line(""), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_asks_for_more_time_until_it_has_ended() {
        let (begun, mut asked) = (tokio::time::Instant::now(), Vec::new());
        let start = async {
            tokio::time::sleep(Duration::from_secs(615)).await;
            "recovered"
        };
        let ask = |more| asked.push((begun.elapsed().as_secs(), more));
        assert_eq!(asking_for_time(start, ask).await, "recovered");
        let expected: Vec<_> = (0..=61).map(|nth| (nth * 10, EXTEND_BY)).collect();
        assert_eq!(asked, expected, "each long before the one before has run out");
        assert!(EXTEND_BY >= 3 * EXTEND_PERIOD);
    }

    #[tokio::test]
    async fn without_a_service_manager_nothing_happens() {
        ready("serving");
        status("busy");
        assert_eq!(during_start(async { 7 }).await, 7);
        watchdog(|| async { panic!("not asked without a watchdog") }).await;
        stopping();
    }
}
