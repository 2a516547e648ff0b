//! Tells the service manager how the daemon fares: ready, status, watchdog, stopping.
//!
//! Speaks the notification protocol of systemd (units with `Type=notify`). Without `NOTIFY_SOCKET`
//! in the environment every function here does nothing. A failure to notify is logged and changes
//! nothing else: the daemon's work does not depend on its manager.

use std::{future::Future, time::Duration};

use sd_notify::NotifyState;

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

/// Starting takes longer than the unit allows: asks for `more` time from now on.
pub fn extend_start(more: Duration) {
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

    #[tokio::test]
    async fn without_a_service_manager_nothing_happens() {
        ready("serving");
        status("busy");
        extend_start(Duration::from_secs(1));
        watchdog(|| async { panic!("not asked without a watchdog") }).await;
        stopping();
    }
}
