//! Sessions: hello, opening, renewing, ending.

use std::time::Duration;

use millrace_protocol::session::{
    AllTold, CheckLog, CheckLogReply, CloseSession, Done, Hello, HelloReply, OpenSession,
    RenewTicket, SESSIONS_MAX, SESSIONS_PER_HOST_MAX, SessionReply, Ticket,
};
use millrace_types::{ErrorKind, Failure, HostId, LogIndex, SessionId};

use super::{Client, Need, Step, create::reused};
use crate::{
    command::{self, Command, Outcome},
    engine::Core,
};

/// The longest host name that is kept, in bytes.
const HOST_NAME_LEN_MAX: usize = 255;

/// Who the server is.
///
/// # Errors
/// None today.
pub fn hello(core: &mut Core, _: &Client, request: &Hello) -> Result<Step<HelloReply>, Failure> {
    if request.seen_index > core.last_index() {
        tracing::warn!(seen = %request.seen_index, last = %core.last_index(),
            "a peer has seen commands that a loss of power took away");
    }
    Ok(Step::Done(HelloReply {
        incarnation: core.incarnation(),
        last_index: core.last_index(),
        server_time: core.now(),
        map_epoch: core.map().0.epoch,
    }))
}

/// How much the log has of what the caller has seen of it in an earlier life of the server.
///
/// # Errors
/// When the store is broken.
pub fn check_log(
    core: &mut Core,
    _: &Client,
    request: &CheckLog,
) -> Result<Step<CheckLogReply>, Failure> {
    let kept = core.kept_of(request.seen.incarnation)?.unwrap_or(LogIndex(0));
    Ok(Step::Done(CheckLogReply { kept }))
}

/// The session has declared whatever it has from before a restart. Said again, or by a session that
/// is younger than that, it changes nothing.
///
/// # Errors
/// [`ErrorKind::Stale`] where the client speaks of another life of the server;
/// [`ErrorKind::SessionGone`]; when the log's disk is full or fails: then it is known all the same.
pub fn all_told(
    core: &mut Core,
    client: &Client,
    request: &AllTold,
) -> Result<Step<Done>, Failure> {
    client.own_session(core, request.session)?;
    if request.incarnation != core.incarnation() {
        let text = "the metadata server was restarted: what was declared before does not count";
        return Err(Failure::new(ErrorKind::Stale, text));
    }
    core.handle_all_told(request.session)?;
    Ok(Step::Done(Done::default()))
}

/// Begins a session, or finds the one that the same request began.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a host name that is too long; [`ErrorKind::Busy`] while the
/// host, or the cluster, has as many sessions as it may, or as [`renew`].
pub fn open(
    core: &mut Core,
    client: &Client,
    request: &OpenSession,
) -> Result<Step<SessionReply>, Failure> {
    if request.host_name.len() > HOST_NAME_LEN_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    // A subtree that does not exist is told now, not at the first lookup.
    client.top(core)?;
    let session = match core.session_of(client.host, request.nonce) {
        Some(session) => session,
        None => {
            check_room(core, client)?;
            let command = Command::OpenSession(command::OpenSession {
                host: client.host,
                host_name: request.host_name.clone(),
                nonce: request.nonce,
            });
            match core.execute(None, command)? {
                Outcome::Session(session) => session,
                _ => return Err(reused()),
            }
        }
    };
    ticket(core, client, session).map(Step::Done)
}

/// Makes sure that there is room for one more session: where there is none, those whose lease has
/// run out go first, the oldest before the others.
fn check_room(core: &mut Core, client: &Client) -> Result<(), Failure> {
    let full = |core: &Core| full(client.host, core.session_counts(client.host));
    if full(core).is_none() {
        return Ok(());
    }
    core.end_dead_sessions()?;
    let Some(text) = full(core) else { return Ok(()) };
    let lease = core.session_end().as_secs();
    let text = format!("{text}; those that were killed count for {lease} s at most");
    Err(Failure::new(ErrorKind::Busy, text).retry_after(ROOM_PAUSE))
}

/// Why there is no room beside so many sessions of the host, and in all.
fn full(host: HostId, (of_host, all): (usize, usize)) -> Option<String> {
    if of_host >= SESSIONS_PER_HOST_MAX {
        return Some(format!("host {host} has {of_host} mounts, which is the most: unmount some"));
    }
    (all >= SESSIONS_MAX)
        .then(|| format!("the cluster has {all} mounts, which is the most: unmount some"))
}

/// How long a host without room for a session waits before it asks again.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Renews a session's ticket.
///
/// # Errors
/// [`ErrorKind::SessionGone`]; [`ErrorKind::Busy`] while it lets others wait for too long.
pub fn renew(
    core: &mut Core,
    client: &Client,
    request: &RenewTicket,
) -> Result<Step<SessionReply>, Failure> {
    client.own_session(core, request.session)?;
    ticket(core, client, request.session).map(Step::Done)
}

/// Ends a session, a part of it in each turn. One that has ended already is no error.
///
/// # Errors
/// When the log's disk is full or fails.
pub fn close(
    core: &mut Core,
    client: &Client,
    request: &CloseSession,
) -> Result<Step<Done>, Failure> {
    let has_ended = match client.own_session(core, request.session) {
        Ok(()) => core.end_session(request.session)?,
        Err(failure) if failure.kind == ErrorKind::SessionGone => true,
        Err(failure) => return Err(failure),
    };
    if !has_ended {
        return Ok(Step::Need(Need::Turns));
    }
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}

fn ticket(core: &mut Core, client: &Client, session: SessionId) -> Result<SessionReply, Failure> {
    core.check_owed(session)?;
    let now = core.now();
    let expires = core.expiry.handle_ticket(session, now);
    let ticket = Ticket { session, host: client.host, fingerprint: client.fingerprint, expires };
    Ok(SessionReply {
        session,
        ticket: core.keyring().ticket(&ticket)?,
        lease_ms: u32::try_from(core.lease().as_millis()).unwrap_or(u32::MAX),
        server_time: now,
        map_epoch: core.map().0.epoch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_the_cluster_have_a_most_of_sessions() {
        let host = HostId([1; 16]);
        assert_eq!(full(host, (SESSIONS_PER_HOST_MAX - 1, SESSIONS_MAX - 1)), None);
        assert!(full(host, (SESSIONS_PER_HOST_MAX, 300)).is_some_and(|text| text.contains("host")));
        assert!(full(host, (0, SESSIONS_MAX)).is_some_and(|text| text.contains("cluster")));
    }
}
