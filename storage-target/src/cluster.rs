//! What this daemon knows of its cluster: the time, the keys, the map, and whether it may write.
//!
//! Written by the loop that talks to the metadata server ([`crate::member`]), read by every
//! request. Reckons in the metadata server's time, as the last heartbeat told it.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use aws_lc_rs::hmac;
use millrace_protocol::{
    capability::{BODY_LEN_MAX, Purpose, Signed},
    cluster::{HeartbeatReply, Keys, Map},
    codec,
};
use millrace_types::{
    ChunkIndex, ErrorKind, Failure, GroupEpoch, GroupId, KeyId, Layout, MapEpoch, PoolId, TargetId,
    Timestamp,
};
use tokio::sync::{Notify, watch};

/// How long a request waits for keys or a map that the next heartbeat will bring.
const NEWS_WAIT: Duration = Duration::from_secs(2);

/// The epoch of a group that has the targets that it was made with.
const FIRST_EPOCH: GroupEpoch = GroupEpoch(1);

/// The view of the cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    clock: RwLock<Option<Clock>>,
    keys: RwLock<Vec<(KeyId, hmac::Key)>>,
    map: RwLock<Arc<Map>>,
    /// Groups that were given to other targets, with how new a capability for their chunks must be.
    moved: RwLock<HashMap<(PoolId, GroupId), Moved>>,
    /// Counts what has been learnt, for those who wait for something new.
    news: watch::Sender<u64>,
    /// Wakes the loop that fetches.
    wanted: Notify,
}

/// When a group got the targets that it has, as far as this daemon saw it.
#[derive(Clone, Copy, Debug)]
struct Moved {
    epoch: GroupEpoch,
    /// The newest key at that time. What older ones signed may take for a hole, or for the
    /// bucket's, what only the targets before had.
    key: KeyId,
    seen: Instant,
}

/// The metadata server's time at one moment of this machine's steady clock.
#[derive(Clone, Copy, Debug)]
struct Clock {
    server_time: Timestamp,
    received: Instant,
    /// When the heartbeat was sent: the lease counts from there.
    sent: Instant,
    lease: Duration,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let map = Map { epoch: MapEpoch(0), hosts: vec![], targets: vec![], pools: vec![] };
        let inner = Inner {
            clock: RwLock::new(None),
            keys: RwLock::default(),
            map: RwLock::new(Arc::new(map)),
            moved: RwLock::default(),
            news: watch::Sender::new(0),
            wanted: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Takes the answer to a heartbeat that was sent at `sent`.
    pub(crate) fn handle_heartbeat(&self, reply: &HeartbeatReply, sent: Instant, now: Instant) {
        let lease = Duration::from_millis(u64::from(reply.lease_ms));
        let clock = Clock { server_time: reply.server_time, received: now, sent, lease };
        *self.inner.clock.write().unwrap_or_else(PoisonError::into_inner) = Some(clock);
    }

    pub(crate) fn replace_keys(&self, keys: &Keys) {
        let keys = keys.keys.iter();
        let keys = keys.map(|key| (key.id, hmac::Key::new(hmac::HMAC_SHA256, &key.secret)));
        *self.inner.keys.write().unwrap_or_else(PoisonError::into_inner) = keys.collect();
        self.announce();
    }

    /// Takes a new map. The keys must have been fetched after it.
    pub(crate) fn replace_map(&self, map: Map) {
        self.note_moved(&map);
        *self.inner.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        self.announce();
    }

    fn note_moved(&self, map: &Map) {
        let Some(key) = self.newest_key() else { return };
        let seen = Instant::now();
        let mut moved = self.inner.moved.write().unwrap_or_else(PoisonError::into_inner);
        for pool in &map.pools {
            let groups = (0..).map(GroupId).zip(&pool.groups);
            for (number, group) in groups.filter(|(_, group)| group.epoch > FIRST_EPOCH) {
                let new = Moved { epoch: group.epoch, key, seen };
                let known = moved.entry((pool.id, number)).or_insert(new);
                if known.epoch != group.epoch {
                    *known = new;
                }
            }
        }
    }

    /// Checks that the map names a target.
    ///
    /// # Errors
    /// [`ErrorKind::StaleGroup`] for one that was given up.
    pub(crate) fn check_serves(&self, target: TargetId) -> Result<(), Failure> {
        if self.map().targets.iter().any(|known| known.id == target) {
            return Ok(());
        }
        let words = format!("target {target} was given up: others have its groups");
        Err(Failure::new(ErrorKind::StaleGroup, words))
    }

    /// Whether the group of a chunk got other targets after a moment, as far as this daemon saw it.
    pub(crate) fn has_moved_since(
        &self,
        layout: &Layout,
        chunk: ChunkIndex,
        moment: Instant,
    ) -> bool {
        let moved = self.inner.moved.read().unwrap_or_else(PoisonError::into_inner);
        let group = (layout.pool(), layout.group(chunk));
        moved.get(&group).is_some_and(|moved| moved.seen > moment)
    }

    /// Checks that what was signed with `key` is as new as the place of a chunk.
    ///
    /// # Errors
    /// [`ErrorKind::KeyRetired`]: a new capability is needed.
    pub(crate) fn check_fresh(
        &self,
        layout: &Layout,
        chunk: ChunkIndex,
        key: KeyId,
    ) -> Result<(), Failure> {
        let group = layout.group(chunk);
        let moved = self.inner.moved.read().unwrap_or_else(PoisonError::into_inner);
        match moved.get(&(layout.pool(), group)) {
            Some(moved) if key < moved.key => {
                let words = format!("{group} has had other targets since that was signed");
                Err(Failure::new(ErrorKind::KeyRetired, words))
            }
            _ => Ok(()),
        }
    }

    /// The newest key held, if any.
    pub(crate) fn newest_key(&self) -> Option<KeyId> {
        let keys = self.inner.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().map(|(id, _)| *id).max()
    }

    pub(crate) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.inner.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A map that has the group of a chunk: a daemon that has just started, or has not heard of a
    /// new group, must not take the chunk for another target's. Waits some seconds for it. May be
    /// dropped at its await.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`].
    pub(crate) async fn map_with(
        &self,
        layout: &Layout,
        chunk: ChunkIndex,
    ) -> Result<Arc<Map>, Failure> {
        let (pool, group) = (layout.pool(), layout.group(chunk));
        let known = self
            .wait_for(|cluster| Some(cluster.map()).filter(|map| map.group(pool, group).is_some()));
        known.await.ok_or_else(|| {
            let words = format!("the daemon has no map of the cluster with {group} yet");
            Failure::new(ErrorKind::Unavailable, words)
        })
    }

    /// Waits until a request needs news.
    pub(crate) async fn wanted(&self) {
        self.inner.wanted.notified().await;
    }

    /// The metadata server's time.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] before the first heartbeat.
    pub(crate) fn now(&self) -> Result<Timestamp, Failure> {
        let clock = *self.inner.clock.read().unwrap_or_else(PoisonError::into_inner);
        let clock = clock.ok_or_else(|| {
            let words = "this host has not reached the metadata server yet";
            Failure::new(ErrorKind::Unavailable, words)
        })?;
        Ok(clock.server_time.plus(clock.received.elapsed()))
    }

    /// Whether this daemon may still change anything: its last answered heartbeat is younger than a
    /// lease. Afterwards its groups may have moved to others.
    pub(crate) fn may_write(&self) -> bool {
        let clock = *self.inner.clock.read().unwrap_or_else(PoisonError::into_inner);
        clock.is_some_and(|clock| clock.sent.elapsed() < clock.lease)
    }

    /// As [`Self::may_write`], in words.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`].
    pub(crate) fn check_may_write(&self) -> Result<(), Failure> {
        if self.may_write() {
            return Ok(());
        }
        let words = "this target has not heard from the metadata server for a lease";
        Err(Failure::new(ErrorKind::Unavailable, words).retry_after(Duration::from_secs(1)))
    }

    /// Checks a signature and reads what was signed. May be dropped at its await.
    ///
    /// # Errors
    /// [`ErrorKind::Forbidden`] for a wrong signature; [`ErrorKind::KeyRetired`] for a key that is
    /// no longer kept; [`ErrorKind::Protocol`] when the body is no such statement.
    pub(crate) async fn verify<M: codec::Message>(
        &self,
        purpose: Purpose,
        signed: &Signed,
    ) -> Result<M, Failure> {
        if signed.body.len() > BODY_LEN_MAX {
            return Err(ErrorKind::Protocol.into());
        }
        let key = self.key(signed.key).await?;
        let bytes = Signed::signed_bytes(purpose, signed.key, &signed.body);
        hmac::verify(&key, &bytes, &signed.mac)
            .map_err(|_| Failure::new(ErrorKind::Forbidden, "the signature is wrong"))?;
        codec::decode(&signed.body)
            .map_err(|error| Failure::new(ErrorKind::Protocol, error.to_string()))
    }

    /// The key `id`, waiting for it if it is newer than all that are held.
    async fn key(&self, id: KeyId) -> Result<hmac::Key, Failure> {
        let found = self.wait_for(|cluster| {
            let keys = cluster.inner.keys.read().unwrap_or_else(PoisonError::into_inner);
            let newest = keys.iter().map(|(id, _)| *id).max();
            match keys.iter().find(|(held, _)| *held == id) {
                Some((_, key)) => Some(Ok(key.clone())),
                None if newest.is_some_and(|newest| id < newest) => {
                    Some(Err(ErrorKind::KeyRetired.into()))
                }
                None => None,
            }
        });
        found.await.unwrap_or_else(|| {
            Err(Failure::new(ErrorKind::KeyRetired, format!("{id} is unknown to this host")))
        })
    }

    /// Checks that `target` serves a chunk under the caller's epoch of its group. May be dropped at
    /// its await.
    ///
    /// # Errors
    /// [`ErrorKind::StaleGroup`] when the caller's map is old.
    pub(crate) async fn check_group(
        &self,
        target: TargetId,
        layout: &Layout,
        chunk: ChunkIndex,
        epoch: GroupEpoch,
    ) -> Result<(), Failure> {
        let (pool, group) = (layout.pool(), layout.group(chunk));
        let verdict = self.wait_for(|cluster| {
            let map = cluster.map();
            let known = map.group(pool, group)?;
            if epoch > known.epoch {
                // The caller's map is newer than this one.
                return None;
            }
            Some(epoch == known.epoch && known.targets.contains(&target))
        });
        if verdict.await == Some(true) {
            return Ok(());
        }
        let words = format!("{group} is not served by target {target} under epoch {epoch}");
        Err(Failure::new(ErrorKind::StaleGroup, words))
    }

    /// Looks now and after each piece of news, for a while.
    async fn wait_for<T>(&self, look: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let mut news = self.inner.news.subscribe();
        let wait = async {
            loop {
                if let Some(found) = look(self) {
                    return Some(found);
                }
                self.inner.wanted.notify_one();
                if news.changed().await.is_err() {
                    return None;
                }
            }
        };
        // What is known is answered without touching a timer.
        if let Some(found) = look(self) {
            return Some(found);
        }
        tokio::time::timeout(NEWS_WAIT, wait).await.ok().flatten()
    }

    fn announce(&self) {
        self.inner.news.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::cluster::{Group, Pool, SigningKey};
    use millrace_types::ChunkSize;

    use super::*;

    #[test]
    fn what_was_signed_before_a_group_was_given_to_others_is_not_taken_for_its_chunks() {
        let cluster = Cluster::new();
        let layout = Layout::new(ChunkSize::DEFAULT, 2, PoolId(0), 2, 0).unwrap();
        let chunk_of = |group: GroupId| {
            let mut chunks = (0..2).map(ChunkIndex);
            chunks.find(|&index| layout.group(index) == group).unwrap()
        };
        let learn = |newest: u32, epochs: [u32; 2]| {
            let key = |id| SigningKey { id: KeyId(id), secret: [1; 32] };
            cluster.replace_keys(&Keys { keys: vec![key(newest - 1), key(newest)] });
            let group = |epoch| Group { epoch: GroupEpoch(epoch), targets: vec![] };
            let groups = epochs.map(group).to_vec();
            let pools = vec![Pool { id: PoolId(0), name: "default".to_owned(), groups }];
            let (hosts, targets) = (Vec::new(), Vec::new());
            cluster.replace_map(Map { epoch: MapEpoch(newest.into()), hosts, targets, pools });
        };
        let check = |group, key| {
            let checked = cluster.check_fresh(&layout, chunk_of(GroupId(group)), KeyId(key));
            checked.map_err(|failure| failure.kind)
        };
        learn(2, [1, 1]);
        assert_eq!((check(0, 1), check(1, 1)), (Ok(()), Ok(())));
        // A target is given up; then there is a new key, and others have its group.
        learn(2, [2, 1]);
        learn(3, [3, 1]);
        assert_eq!((check(0, 2), check(0, 3)), (Err(ErrorKind::KeyRetired), Ok(())));
        assert_eq!(check(1, 2), Ok(()), "the other group has not moved");
    }
}
