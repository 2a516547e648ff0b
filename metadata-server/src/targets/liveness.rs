//! Decides whether a storage target answers.
//!
//! Owns no socket, timer or clock: the engine feeds it heartbeats and the present time.
//!
//! ```text
//!            heartbeat          silent 1           silent 2
//!  Joining ────────────▶ Online ────────▶ Suspect ────────▶ Offline
//!     │                    ▲                 │                 ▲ │
//!     │ silent 2           └──── heartbeat ──┴─────────────────┼─┘
//!     └────────────────────────────────────────────────────────┘
//! ```
//!
//! Silent 1 is [`SUSPECT_AFTER`]; silent 2 is a lease: the target then refuses writes by itself.

use std::time::{Duration, Instant};

use millrace_protocol::admin::TargetState;

/// Three heartbeats are missing.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(3_500);

/// One target.
#[derive(Debug, Clone)]
pub struct Liveness {
    state: TargetState,
    /// The last heartbeat, or the server's start.
    heard: Instant,
    offline_after: Duration,
}

impl Liveness {
    /// A target that is known and has not been heard of since `now`.
    #[must_use]
    pub fn new(now: Instant, lease: Duration) -> Self {
        Self { state: TargetState::Joining, heard: now, offline_after: lease.max(SUSPECT_AFTER) }
    }

    /// Records a heartbeat.
    ///
    /// # Panics
    /// When time goes backwards, which a monotonic clock does not.
    pub fn handle_heartbeat(&mut self, now: Instant) {
        assert!(self.heard <= now, "time goes forwards");
        self.heard = now;
        self.state = TargetState::Online;
    }

    /// No heartbeat could be heard for so long before `now`.
    pub fn forgive(&mut self, unheard: Duration, now: Instant) {
        self.heard = (self.heard + unheard).min(now);
    }

    /// Applies the deadlines that have passed by `now`; tells whether the state changed.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let silent = now.saturating_duration_since(self.heard);
        let next = match self.state {
            _ if silent >= self.offline_after => TargetState::Offline,
            TargetState::Online if silent >= SUSPECT_AFTER => TargetState::Suspect,
            unchanged => unchanged,
        };
        let changed = next != self.state;
        self.state = next;
        changed
    }

    /// Whether it answers.
    #[must_use]
    pub fn state(&self) -> TargetState {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_leads_to_suspect_then_offline_and_a_heartbeat_brings_it_back() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut target = Liveness::new(start, Duration::from_secs(30));
        assert!(!target.handle_timeout(at(29)));
        assert_eq!(target.state(), TargetState::Joining);
        assert!(target.handle_timeout(at(30)));
        assert_eq!(target.state(), TargetState::Offline);
        target.handle_heartbeat(at(31));
        assert_eq!(target.state(), TargetState::Online);
        assert!(!target.handle_timeout(at(34)));
        assert!(target.handle_timeout(at(35)));
        assert_eq!(target.state(), TargetState::Suspect);
        assert!(target.handle_timeout(at(61)));
        assert_eq!(target.state(), TargetState::Offline);
        target.handle_heartbeat(at(100));
        // Nobody was heard for a minute.
        target.forgive(Duration::from_secs(60), at(162));
        assert!(!target.handle_timeout(at(163)));
        assert!(target.handle_timeout(at(164)));
        // Nor is anybody heard later than now.
        target.handle_heartbeat(at(200));
        target.forgive(Duration::from_secs(60), at(201));
        target.handle_heartbeat(at(201));
    }
}
