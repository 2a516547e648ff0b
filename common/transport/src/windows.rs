//! Shares the memory for unread bytes among the connections of a node.
//!
//! A connection's window is its share of the budget, rounded down to a power of two so that it
//! changes rarely, and never more than all its requests can use. The number of requests that a
//! server lets it have in flight is that window divided by the window of one stream: so even if the
//! service has asked for none of the bodies, no stream waits for window that another one occupies.
//! A quarter is added because quinn announces freed window only in steps of an eighth of the whole.
//! A client reads every reply as it arrives, so its windows need no such relation to its requests.
//!
//! The memory for sent bytes without confirmation is shared out alike.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use quinn::VarInt;

use crate::{
    TransportSettings,
    endpoint::{Windows, var_int},
};

pub(crate) struct WindowShares {
    rule: Rule,
    members: Arc<Mutex<Members>>,
}

#[derive(Default)]
struct Members {
    connections: BTreeMap<usize, quinn::Connection>,
    shares: Shares,
}

/// What one connection gets.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Shares {
    streams: u32,
    send: u64,
}

#[derive(Clone, Copy)]
struct Rule {
    budget: u64,
    send_budget: u64,
    send_max: u64,
    stream: u32,
    /// Of a server: requests that a connection may have in flight. Of a client: replies whose
    /// windows a connection's window holds.
    streams_min: u32,
    streams_max: u32,
    accepts_streams: bool,
}

impl Rule {
    /// What each of `count` connections gets.
    fn shares(self, count: usize) -> Shares {
        let count = u64::try_from(count).unwrap_or(u64::MAX).next_power_of_two();
        let send = self.send_budget / count;
        Shares {
            streams: self.streams(count),
            send: send.clamp(SEND_MIN.min(self.send_max), self.send_max),
        }
    }

    /// Requests that each of `count` connections may have in flight.
    fn streams(self, count: u64) -> u32 {
        let streams = self.budget / count / (u64::from(self.stream) * 5 / 4);
        u32::try_from(streams).unwrap_or(u32::MAX).clamp(self.streams_min, self.streams_max)
    }

    fn windows(self, streams: u32) -> Windows {
        Windows {
            streams: if self.accepts_streams { streams } else { 0 },
            stream: self.stream,
            connection: u64::from(streams) * (u64::from(self.stream) * 5 / 4),
        }
    }
}

impl WindowShares {
    /// Of a server, which is sent requests.
    pub(crate) fn of_server(settings: &TransportSettings) -> Self {
        let streams_max = settings.streams_per_connection;
        Self::new(Rule {
            budget: settings.receive_budget_bytes,
            send_budget: settings.send_budget_bytes,
            send_max: u64::from(settings.send_window_bytes),
            stream: settings.stream_window_bytes,
            streams_min: STREAMS_MIN.min(streams_max),
            streams_max,
            accepts_streams: true,
        })
    }

    /// Of a client, which is sent replies. Requests from servers come with a later version.
    pub(crate) fn of_client(settings: &TransportSettings) -> Self {
        Self::new(Rule {
            budget: settings.receive_budget_bytes,
            send_budget: settings.send_budget_bytes,
            send_max: u64::from(settings.send_window_bytes),
            stream: REPLY_WINDOW,
            streams_min: 1,
            streams_max: REPLIES_MAX,
            accepts_streams: false,
        })
    }

    fn new(rule: Rule) -> Self {
        Self { rule, members: Arc::default() }
    }

    /// What a connection begins with.
    pub(crate) fn least(&self) -> Windows {
        self.rule.windows(self.rule.streams_min)
    }

    /// How many connections the budget carries.
    pub(crate) fn members_max(&self) -> usize {
        let least = self.least().connection.max(1);
        usize::try_from(self.rule.budget / least).unwrap_or(usize::MAX)
    }

    /// Gives a connection its share, and the others theirs, until the guard is dropped.
    pub(crate) fn join(&self, connection: &quinn::Connection) -> Share {
        let id = connection.stable_id();
        let mut members = lock(&self.members);
        members.connections.insert(id, connection.clone());
        members.share_out(self.rule);
        apply(connection, members.shares, self.rule);
        Share { id, rule: self.rule, members: Arc::clone(&self.members) }
    }
}

impl Members {
    fn share_out(&mut self, rule: Rule) {
        let shares = rule.shares(self.connections.len());
        if shares != self.shares {
            self.shares = shares;
            for connection in self.connections.values() {
                apply(connection, shares, rule);
            }
        }
    }
}

/// A connection's part in the budget.
pub(crate) struct Share {
    id: usize,
    rule: Rule,
    members: Arc<Mutex<Members>>,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut members = lock(&self.members);
        members.connections.remove(&self.id);
        members.share_out(self.rule);
    }
}

fn apply(connection: &quinn::Connection, shares: Shares, rule: Rule) {
    let windows = rule.windows(shares.streams);
    connection.set_send_window(shares.send);
    connection.set_receive_window(var_int(windows.connection));
    if rule.accepts_streams {
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(windows.streams));
    }
}

/// A panic elsewhere leaves at worst a share that the next change corrects.
fn lock(members: &Mutex<Members>) -> MutexGuard<'_, Members> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fewer requests in flight would make every client wait for round trips.
const STREAMS_MIN: u32 = 4;

/// A whole reply with its message may be under way before the first byte of it is read.
const REPLY_WINDOW: u32 = 2 * 1024 * 1024;

/// Of these windows, 20 MiB in all, a single peer fills the fastest network seen.
const REPLIES_MAX: u32 = 8;

/// With less, a reply of 1 MiB would take too many round trips.
const SEND_MIN: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_windows_together_fit_the_budget(
            count in 1_usize..3000,
            // Settings with less than eight of the largest streams are refused.
            budget_mib in 8_u64..4096,
            stream_kib in 16_u32..1024,
            streams_per_connection in 1_u32..512,
        ) {
            let settings = TransportSettings {
                receive_budget_bytes: budget_mib * 1024 * 1024,
                stream_window_bytes: stream_kib * 1024,
                streams_per_connection,
                ..TransportSettings::default()
            };
            let shares = WindowShares::of_server(&settings);
            let count = count.min(shares.members_max());
            prop_assert!(count >= 1);
            let windows = shares.rule.windows(shares.rule.shares(count).streams);
            let all = windows.connection * count as u64;
            // Power-of-two rounding may only give less, except at the least share.
            prop_assert!(all <= settings.receive_budget_bytes);
            prop_assert!(windows.streams >= 1);
        }
    }
}
