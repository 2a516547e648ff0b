//! Requests to the targets: bytes, each within one chunk.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::join_all;
use millrace_protocol::{
    Request,
    session::Role,
    storage::{self, Attach, Place},
};
use millrace_transport::{Body, CallOptions, Peer, PeerTarget};
use millrace_types::{ChunkIndex, Crc32c, ErrorKind, Failure, HostId, Layout, TargetId};

use crate::{
    cluster::{
        ATTACH_DEADLINE, Cluster,
        lanes::{self, Purpose},
        retry::Attempts,
        routing::Route,
        session::Session,
    },
    fs::file::Access,
};

mod copies;

/// What a target says about an acknowledged write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    /// Which target.
    pub(crate) target: TargetId,
    /// Its loss count.
    pub(crate) loss_count: u64,
}

/// Where a request goes, and the place that it names.
struct Aim {
    route: Route,
    peer: Peer,
    place: Place,
}

impl Cluster {
    /// Reads `range`, which lies within one chunk and is at most one transfer long. The bytes have
    /// been checked. With `sequential`, the target may fetch more of the chunk than is asked for.
    ///
    /// # Errors
    /// What the target answers; [`ErrorKind::Corrupt`] when the bytes arrive damaged again and
    /// again; [`ErrorKind::Unavailable`] after the mount's patience. What is read ahead is given up
    /// as soon as the target does not answer.
    pub(crate) async fn read(
        &self,
        access: &Access,
        range: Range<u64>,
        sequential: bool,
        purpose: Purpose,
    ) -> Result<Body, Failure> {
        let mut attempts = self.patience.begin(Instant::now());
        let mut damaged = 0;
        loop {
            let aim = self.aim_once_known(access, &range, &mut attempts).await?;
            let request = storage::Read { place: aim.place, sequential };
            let (asked, patience) = ((&aim.peer, aim.route.target), (&mut attempts, READ_DEADLINE));
            let answer = self.ask_target(purpose, asked, &request, Body::default(), patience);
            let answer = answer.await;
            let failure = match answer
                .and_then(|(reply, body)| check(body, u64::from(request.place.len), reply.checksum))
            {
                Ok(bytes) => {
                    self.metrics.fetched.inc_by(u64::from(request.place.len));
                    return Ok(bytes);
                }
                Err(failure) => failure,
            };
            if failure.kind == ErrorKind::Corrupt && damaged < DAMAGED_MAX {
                damaged += 1;
                tracing::warn!(target = %aim.route.target, %failure, "bytes arrive damaged");
                continue;
            }
            // Whoever comes to want these bytes asks for them, and waits.
            if purpose == Purpose::ReadAhead && lanes::is_silence(&failure) {
                return Err(failure);
            }
            self.after(failure, Some(&aim.peer), &mut attempts).await?;
        }
    }

    /// Writes `data` at `start`, within one chunk and one transfer.
    ///
    /// # Errors
    /// What the target answers, and [`ErrorKind::Unavailable`] after the mount's patience.
    pub(crate) async fn write(
        &self,
        access: &Access,
        start: u64,
        data: Bytes,
    ) -> Result<Written, Failure> {
        let range = start..start + u64::try_from(data.len()).expect("at most one transfer");
        let checksum = Crc32c::of(&data);
        let number = self.writes.begin();
        let mut attempts = self.patience.begin(Instant::now());
        loop {
            let aim = self.aim_once_known(access, &range, &mut attempts).await?;
            let (number, lowest_pending) = number.write();
            let place = aim.place;
            let request =
                storage::Write { place, checksum, number, lowest_pending, durable: false };
            let (asked, patience) =
                ((&aim.peer, aim.route.target), (&mut attempts, WRITE_DEADLINE));
            let answer = self.ask_target(Purpose::Write, asked, &request, data.clone(), patience);
            match answer.await {
                Ok((reply, _)) => {
                    let target = aim.route.target;
                    return Ok(Written { target, loss_count: reply.loss_count });
                }
                Err(failure) => {
                    self.after(failure, Some(&aim.peer), &mut attempts).await?;
                }
            }
        }
    }

    /// Turns `range`, within one chunk, into zeros.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) async fn zero(
        &self,
        access: &Access,
        range: Range<u64>,
    ) -> Result<Written, Failure> {
        let number = self.writes.begin();
        let mut attempts = self.patience.begin(Instant::now());
        loop {
            let aim = self.aim_once_known(access, &range, &mut attempts).await?;
            let (number, lowest_pending) = number.write();
            let request = storage::Zero { place: aim.place, number, lowest_pending };
            let options = CallOptions::bulk(attempts.deadline(WRITE_DEADLINE, Instant::now()));
            match aim.peer.call(&request, options).await {
                Ok(reply) => {
                    let target = aim.route.target;
                    return Ok(Written { target, loss_count: reply.loss_count });
                }
                Err(failure) => {
                    self.after(failure, Some(&aim.peer), &mut attempts).await?;
                }
            }
        }
    }

    /// The first byte of `range`, within one chunk, that is a hole, or with `hole` unset the first
    /// that is none.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) async fn seek(
        &self,
        access: &Access,
        range: Range<u64>,
        hole: bool,
    ) -> Result<Option<u64>, Failure> {
        let mut attempts = self.patience.begin(Instant::now());
        loop {
            let aim = self.aim_once_known(access, &range, &mut attempts).await?;
            let chunk_start = range.start - u64::from(aim.place.offset);
            let request = storage::Seek { place: aim.place, hole };
            let options = CallOptions::bulk(attempts.deadline(READ_DEADLINE, Instant::now()));
            match aim.peer.call(&request, options).await {
                Ok(reply) => return Ok(reply.offset.map(|offset| chunk_start + u64::from(offset))),
                Err(failure) => {
                    self.after(failure, Some(&aim.peer), &mut attempts).await?;
                }
            }
        }
    }

    /// Makes durable what `target` has acknowledged, and returns its loss count.
    ///
    /// # Errors
    /// As [`Self::write`]; [`ErrorKind::Lost`] for a target that was given up since.
    pub(crate) async fn sync(&self, target: TargetId) -> Result<u64, Failure> {
        let mut attempts = self.patience.begin(Instant::now());
        loop {
            let host = self.routing.host_of(target);
            let Some(peer) = host.and_then(|host| self.peer(host)) else {
                // The map named it when it acknowledged something, and maps only get newer.
                let words = format!("target {target} was given up, with what it had acknowledged");
                return Err(Failure::new(ErrorKind::Lost, words));
            };
            let request = storage::Sync { target };
            let options = CallOptions::bulk(attempts.deadline(WRITE_DEADLINE, Instant::now()));
            match peer.call(&request, options).await {
                Ok(reply) => return Ok(reply.loss_count),
                Err(failure) => {
                    self.after(failure, Some(&peer), &mut attempts).await?;
                }
            }
        }
    }

    /// The targets that may have something of the first `size` bytes of a file with this layout.
    ///
    /// # Errors
    /// What the metadata server answers; [`ErrorKind::Unavailable`] after the mount's patience.
    pub(crate) async fn targets_of(
        &self,
        layout: &Layout,
        size: u64,
    ) -> Result<BTreeSet<TargetId>, Failure> {
        let mut attempts = self.patience.begin(Instant::now());
        loop {
            if let Some(targets) = self.routing.targets_of(layout, size) {
                return Ok(targets);
            }
            let words = "the cluster map does not say who serves all of a file";
            let unknown = Failure::new(ErrorKind::StaleGroup, words);
            self.after(unknown, None, &mut attempts).await?;
        }
    }

    /// Shows the ticket to every target that is known: on one connection, which is enough for a
    /// renewed one, or on `every`.
    pub(super) async fn show_ticket(&self, every: bool) {
        let peers: Vec<Peer> = {
            let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
            targets.values().cloned().collect()
        };
        join_all(peers.iter().map(async |peer| {
            if let Err(failure) = peer.introduce_again(every, ATTACH_DEADLINE).await {
                tracing::debug!(?peer, %failure, "cannot show the ticket");
            }
        }))
        .await;
    }

    /// The map has changed: daemons may have moved.
    pub(super) fn handle_new_addresses(&self) {
        let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        for (&host, peer) in targets.iter() {
            if let Some(known) = self.routing.host(host) {
                peer.set_addresses(addresses(&known.addresses));
            }
        }
    }

    /// Whom to ask about `range`, once the map says it.
    async fn aim_once_known(
        &self,
        access: &Access,
        range: &Range<u64>,
        attempts: &mut Attempts,
    ) -> Result<Aim, Failure> {
        loop {
            match self.aim(access, range) {
                Ok(aim) => return Ok(aim),
                Err(failure) => self.after(failure, None, attempts).await?,
            }
        }
    }

    fn aim(&self, access: &Access, range: &Range<u64>) -> Result<Aim, Failure> {
        let layout = &access.content.layout;
        let mut pieces = layout.pieces(range.start, range.end - range.start);
        let piece = pieces.next().ok_or(ErrorKind::FileTooLarge)?;
        assert!(pieces.next().is_none(), "a request stays within one chunk");
        let unknown = |index: ChunkIndex| {
            let words = format!("the cluster map does not say who serves chunk {index}");
            Failure::new(ErrorKind::StaleGroup, words)
        };
        let route = self.routing.route(layout, piece.index).ok_or_else(|| unknown(piece.index))?;
        let peer = self.peer(route.host).ok_or_else(|| unknown(piece.index))?;
        let place = Place {
            target: route.target,
            group_epoch: route.group_epoch,
            capability: access.capability.clone(),
            chunk: piece.index,
            offset: u32::try_from(piece.offset_in_chunk).expect("a chunk has at most 64 MiB"),
            len: u32::try_from(piece.len).expect("a chunk has at most 64 MiB"),
        };
        Ok(Aim { route, peer, place })
    }

    /// Asks a target once, as soon as it may be asked, with what is left of the patience for the
    /// answer; that does not count the time that others took who are answered.
    async fn ask_target<R: Request + Sync>(
        &self,
        purpose: Purpose,
        (peer, target): (&Peer, TargetId),
        request: &R,
        body: impl Into<Body>,
        (attempts, most): (&mut Attempts, Duration),
    ) -> Result<(R::Reply, Body), Failure> {
        let began = Instant::now();
        let is_silent = self.lanes.is_silent(target);
        let enter = self.lanes.enter(purpose, target, is_silent);
        let _out = if is_silent {
            let limit = attempts.deadline(most, began);
            tokio::time::timeout(limit, enter).await.map_err(|_| {
                Failure::new(ErrorKind::Unavailable, "those before it are not answered either")
            })?
        } else {
            let out = enter.await;
            attempts.leave_out(began.elapsed());
            out
        };
        let options = CallOptions::bulk(attempts.deadline(most, Instant::now()));
        let answer = peer.exchange(request, body, options).await;
        self.lanes.handle_outcome(target, purpose, answer.as_ref().err());
        answer
    }

    /// Does what a failure asks for, and waits; afterwards the request may be sent again.
    async fn after(
        &self,
        failure: Failure,
        sent_to: Option<&Peer>,
        attempts: &mut Attempts,
    ) -> Result<(), Failure> {
        self.metrics.retries.inc();
        let waits = match failure.kind {
            ErrorKind::StaleGroup => {
                let held = self.routing.epoch();
                self.refresh_map(held).await?;
                if self.routing.epoch() > held {
                    return Ok(());
                }
                // The map is as new as it gets while the target knows more: give it time.
                Failure { kind: ErrorKind::Unavailable, ..failure }
            }
            ErrorKind::TicketExpired => {
                self.renew_ticket().await.or_else(transient)?;
                if let Some(peer) = sent_to {
                    introduce(peer).await?;
                }
                Failure { kind: ErrorKind::Unavailable, ..failure }
            }
            ErrorKind::SessionGone => {
                self.handle_session_gone().await?;
                return Err(failure);
            }
            // A session that took the place of another may not have been shown there yet, while
            // programs hold what it was given.
            ErrorKind::Forbidden => match sent_to {
                Some(peer) if attempts.may_introduce() => {
                    introduce(peer).await?;
                    return Ok(());
                }
                _ => return Err(failure),
            },
            _ => failure,
        };
        let unreachable = waits.kind == ErrorKind::Unavailable;
        tokio::time::sleep(attempts.handle_failure(waits, Instant::now())?).await;
        if unreachable && attempts.is_long() {
            // It may have moved to another address. A moment only: the metadata server may be away
            // as well, and the target come back before it.
            let refresh = self.refresh_map(self.routing.epoch());
            drop(tokio::time::timeout(ERRAND_MAX, refresh).await);
        }
        Ok(())
    }

    /// The daemon on `host`, as the map describes it.
    fn peer(&self, host: HostId) -> Option<Peer> {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = targets.get(&host) {
            return Some(peer.clone());
        }
        let known = self.routing.host(host)?;
        let addresses = addresses(&known.addresses);
        let target = PeerTarget { role: Role::Target, host: Some(host), addresses };
        let session = Arc::clone(&self.session);
        let peer = Peer::with_hook(&self.endpoints, target, move |connected| {
            let request = introduction(&session, connected.number());
            async move {
                connected.call(&request, CallOptions::bulk(ATTACH_DEADLINE)).await?;
                Ok(())
            }
        });
        targets.insert(host, peer.clone());
        Some(peer)
    }
}

/// Shows a target the session's ticket on every connection.
async fn introduce(peer: &Peer) -> Result<(), Failure> {
    let shown = peer.introduce_again(true, ATTACH_DEADLINE).await;
    shown.or_else(|failure| match failure.kind {
        // The renewal has not come through yet: the request meets it again.
        ErrorKind::TicketExpired | ErrorKind::SessionGone => Ok(()),
        _ => transient(failure),
    })
}

fn introduction(session: &Session, connection_number: u64) -> Attach {
    Attach { ticket: session.ticket(), connection_number }
}

/// Checks the body of a reply.
fn check(body: Body, len: u64, checksum: Crc32c) -> Result<Body, Failure> {
    let received = body.len();
    if u64::try_from(received) != Ok(len) {
        let words = format!("{received} bytes came instead of {len}");
        return Err(Failure::new(ErrorKind::Protocol, words));
    }
    if body.checksum() == checksum { Ok(body) } else { Err(ErrorKind::Corrupt.into()) }
}

/// Addresses that cannot be read are left out: a newer server may know other forms.
fn addresses(texts: &[String]) -> Vec<std::net::SocketAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// A transient failure of a side errand shows again in the main one.
fn transient(failure: Failure) -> Result<(), Failure> {
    if failure.kind.is_transient() { Ok(()) } else { Err(failure) }
}

/// One attempt to read: a cold piece may wait for a slow bucket.
const READ_DEADLINE: Duration = Duration::from_secs(60);

/// One attempt to write or sync.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// How long a request waits for a newer map that it may not need.
const ERRAND_MAX: Duration = Duration::from_millis(200);

/// How often damaged bytes are asked for again.
const DAMAGED_MAX: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_checked() {
        let parts = Body::from(vec![Bytes::from_static(b"ab"), Bytes::from_static(b"c")]);
        let checksum = Crc32c::of(b"abc");
        assert_eq!(check(parts.clone(), 3, checksum).expect("sound").to_vec(), b"abc");
        let kind = |outcome: Result<Body, Failure>| outcome.expect_err("not sound").kind;
        assert_eq!(kind(check(parts.clone(), 3, Crc32c(1))), ErrorKind::Corrupt);
        assert_eq!(kind(check(parts, 4, checksum)), ErrorKind::Protocol);
        let empty = check(Body::default(), 0, Crc32c::EMPTY);
        assert!(empty.expect("nothing is sound").is_empty());
    }
}
