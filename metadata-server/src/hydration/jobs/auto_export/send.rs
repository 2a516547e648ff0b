//! Sends what is due, of one link after the other, where no job exports or releases.
//!
//! Whenever there is a slot, the link with the fewest files under way has the next one, and of
//! those with as many the one that had its last one longest ago. Where one alone has something due
//! it leaves some slots to what others may have a moment later, since its own may be busy for long.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use millrace_protocol::{admin::JobKind, selection::Selection, session::Caller};
use millrace_types::{ErrorKind, Failure, InodeId, LinkId, Timestamp};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    AutoExporter, Environment, FAILING_MAX, State, UnderWay, place_of, queue::Waiting,
    standing::is_of_bucket, turns::Turns, until,
};
use crate::{
    hydration::{
        import::broken,
        jobs::{
            Alone, Context, Filter, PAUSE, Progress,
            alone::{Claim, Turn},
            export::{self, Counted, FILES_MAX},
            file_export::Sent,
            settle,
            start::fresh,
        },
        walk::refused,
    },
    leases::touched::writers,
    namespace::tree,
    store::records::JobRecord,
};

/// Files of one link that are under way at the same time, where there are several links: a quarter
/// of all slots is left to the others.
const LINK_FILES_MAX: usize = FILES_MAX - FILES_MAX / 4;

/// A file that is open is looked at again after the quiet time, but not more often.
const OPEN_PAUSE: Duration = Duration::from_secs(1);

impl<E: Environment> AutoExporter<E> {
    /// Sends what is due, for as long as it is polled.
    pub(super) async fn send(&self, alone: &Alone) {
        let filter = Filter::compile(&Selection::default(), Timestamp(0)).expect("it has no words");
        let job = JobRecord {
            job: fresh(JobKind::Export, Vec::new()),
            caller: Caller::ROOT,
            root: InodeId::ROOT,
        };
        let context = Context {
            environment: &self.environment,
            importer: &self.importer,
            unmarked: &self.unmarked,
            job: &job,
            filter: &filter,
            files: None,
            dry_run: false,
            is_atomic: false,
            progress: &Progress::default(),
            outcomes: None,
            pace: None,
            elsewhere: None,
            // Each file is looked at by itself.
            turn: None,
            // A link whose bucket is away stands back by itself.
            patience: None,
        };
        let mut turns = Turns::default();
        let mut files = FuturesUnordered::new();
        // One of each link at most.
        let mut removed: FuturesUnordered<BoxFuture<'_, (LinkId, Duration)>> =
            FuturesUnordered::new();
        let mut asked = FuturesUnordered::new();
        loop {
            // One moment for both: what became due between them nobody would look at again.
            let now = Instant::now();
            while files.len() < FILES_MAX
                && let Some((id, waiting)) = self.take_due(now, |link| turns.may_send(link))
            {
                let (context, uploads) = (&context, turns.begin(waiting.link));
                files.push(async move {
                    let result = one(context, &uploads, id, waiting.link).await;
                    if let Err(failure) = &result
                        && waiting.failed == 0
                    {
                        log(context, id, failure).await;
                    }
                    (id, waiting, result)
                });
            }
            let (due, next) = self.state().due(now);
            turns.give_back(&due);
            let new = due.into_iter().filter(|link| turns.ask(*link));
            asked.extend(new.map(|link| self.turn_of(alone, link)));
            tokio::select! {
                Some((id, waiting, result)) = files.next(), if !files.is_empty() => {
                    turns.handle_end(waiting.link);
                    self.handle_end(id, waiting, result);
                }
                Some((link, took)) = removed.next(), if !removed.is_empty() => {
                    turns.handle_looked(link, took, Instant::now());
                }
                Some((link, turn)) = asked.next(), if !asked.is_empty() => {
                    if let Some(claim) = turns.handle_turn(link, turn, Instant::now()) {
                        removed.push(Box::pin(self.settle_removed(link, claim)));
                    }
                }
                () = alone.wanted() => {}
                () = self.sending.notified() => {}
                () = until(next) => {}
            }
        }
    }

    /// Waits for the turn of a link. None when the link cannot be looked up.
    async fn turn_of<'a>(&self, alone: &'a Alone, link: LinkId) -> (LinkId, Option<Turn<'a>>) {
        let query = self.environment.read(move |view| Claim::of_link(view, link));
        match query.await {
            Ok(claim) => (link, Some(alone.take_last(Arc::new(claim)).await)),
            Err(failure) => {
                tracing::warn!(%link, %failure, "a link cannot be looked up now");
                tokio::time::sleep(PAUSE).await;
                (link, None)
            }
        }
    }

    /// Settles exports of files of a link that were removed meanwhile. How long that took.
    async fn settle_removed(&self, link: LinkId, claim: Arc<Claim>) -> (LinkId, Duration) {
        let begun = Instant::now();
        let Self { environment, importer, unmarked, .. } = self;
        let removed = settle::removed(environment, importer, unmarked, &claim);
        if let Err(failure) = Box::pin(removed).await {
            tracing::warn!(%link, %failure, "exports of removed files cannot be looked for");
        }
        (link, begun.elapsed())
    }

    /// Takes the file that is sent next, of those links that may send.
    fn take_due(
        &self,
        now: Instant,
        may_send: impl Fn(LinkId) -> bool,
    ) -> Option<(InodeId, Waiting)> {
        let mut state = self.state();
        while let Some((id, waiting)) = state.take(now, &may_send) {
            // A walk may wait for room.
            self.sorting.notify_one();
            if let Some(same) = state.under_way.get_mut(&id) {
                same.again = Some(waiting);
                continue;
            }
            state.under_way.insert(id, UnderWay { link: waiting.link, again: None });
            return Some((id, waiting));
        }
        None
    }

    fn handle_end(&self, id: InodeId, waiting: Waiting, result: Result<Counted, Failure>) {
        let now = Instant::now();
        let mut state = self.state();
        if let Some(again) = state.under_way.remove(&id).and_then(|same| same.again) {
            state.put_new(id, again, now);
        }
        let Some(followed) = state.links.get_mut(&waiting.link) else { return };
        match result {
            Ok(counted) => {
                followed.failing.remove(&id);
                if let Counted::Yes { sent: Sent::Now(bytes) } = counted {
                    followed.files += 1;
                    followed.bytes += bytes;
                    self.importer.counts.sent_by_itself(bytes);
                    if followed.standing.handle_sent() {
                        tracing::info!(link = %waiting.link, "the bucket of a link answers again");
                    }
                }
            }
            Err(failure) if failure.kind == ErrorKind::Stale => {
                followed.failing.remove(&id);
            }
            Err(failure) if failure.kind == ErrorKind::InUse => {
                let due = now + followed.quiet.max(OPEN_PAUSE);
                state.put_new(id, Waiting { due, ..waiting }, now);
            }
            Err(failure) => {
                self.importer.counts.failed_by_itself();
                state.fail(id, waiting, failure, now);
            }
        }
    }
}

impl State {
    /// Takes the file that is sent next, of those links that may send.
    fn take(
        &mut self,
        now: Instant,
        may_send: impl Fn(LinkId) -> bool,
    ) -> Option<(InodeId, Waiting)> {
        let ready = self.ready().filter(|(link, ready)| *ready <= now && may_send(*link));
        let turns = ready.filter_map(|(link, _)| {
            let turn = self.links.get(&link)?.turn;
            Some((self.busy(link), turn, link))
        });
        let (.., link) = turns.min()?;
        self.turns += 1;
        if let Some(followed) = self.links.get_mut(&link) {
            followed.turn = self.turns;
        }
        self.queue.take(link, now)
    }

    /// The links of which a file may be sent now, if they have their turn, and when one more of
    /// them may.
    fn due(&self, now: Instant) -> (BTreeSet<LinkId>, Option<Instant>) {
        let (due, later): (Vec<_>, Vec<_>) = self.ready().partition(|(_, ready)| *ready <= now);
        let due = due.into_iter().map(|(link, _)| link).collect();
        (due, later.into_iter().map(|(_, ready)| ready).min())
    }

    /// The links that may send a file, and from when on.
    fn ready(&self) -> impl Iterator<Item = (LinkId, Instant)> {
        let room = if self.links.len() > 1 { LINK_FILES_MAX } else { FILES_MAX };
        self.queue.next().filter_map(move |(link, due)| {
            let followed = self.links.get(&link)?;
            Some((link, followed.standing.admits(due, self.busy(link), room)?))
        })
    }

    /// Lets a file that has failed, and is not under way any more, wait for its next try.
    fn fail(&mut self, id: InodeId, waiting: Waiting, failure: Failure, now: Instant) {
        let busy = self.busy(waiting.link);
        let Some(followed) = self.links.get_mut(&waiting.link) else { return };
        if is_of_bucket(failure.kind) && followed.standing.handle_failure(id, now, busy) {
            let link = waiting.link;
            tracing::warn!(%link, %failure, "a bucket is away: one file at a time is tried");
        }
        let again = waiting.after_failure(now, followed.quiet, may_pass(failure.kind));
        if followed.failing.len() < FAILING_MAX {
            followed.failing.insert(id, failure);
        }
        self.put_new(id, again, now);
    }
}

/// Exports one file, link or mark of a directory, as it is now.
async fn one<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    id: InodeId,
    link: LinkId,
) -> Result<Counted, Failure> {
    let query = context.environment.read(move |view| {
        // Of another link by now, or of none.
        let stays = place_of(view, id)?.is_some_and(|place| place.link == link);
        if !stays {
            return Ok(None);
        }
        let is_written = !writers(view, id).map_err(broken)?.is_empty();
        Ok(Some((tree::inode(view, id).map_err(refused)?, is_written)))
    });
    let Some((inode, is_written)) = query.await? else { return Ok(Counted::No) };
    if is_written {
        return Err(ErrorKind::InUse.into());
    }
    match export::begin(context, uploads, inode) {
        Some(export) => export.await.result,
        None => Ok(Counted::No),
    }
}

/// Logs the first failure of a file, unless that says only that it is gone or open.
async fn log<E: Environment>(context: &Context<'_, E>, id: InodeId, failure: &Failure) {
    if matches!(failure.kind, ErrorKind::Stale | ErrorKind::InUse) {
        return;
    }
    let path = context.path_now(id).await;
    let path = path.escape_ascii();
    tracing::warn!(%path, %failure, "a file cannot go to its bucket now");
}

/// Whether a failure may be gone by itself after a while.
fn may_pass(kind: ErrorKind) -> bool {
    let of_servers = matches!(
        kind,
        ErrorKind::NoSpace | ErrorKind::Disk | ErrorKind::StaleGroup | ErrorKind::Internal
    );
    kind.is_transient() || of_servers || is_of_bucket(kind)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::hydration::jobs::auto_export::Followed;

    const LINK: LinkId = LinkId(1);
    const OTHER: LinkId = LinkId(2);

    /// Links that export by themselves, with files that are due.
    fn state(links: impl IntoIterator<Item = (LinkId, u64)>, now: Instant) -> State {
        let mut state = State::default();
        for (link, count) in links {
            state.links.insert(link, Followed::new(InodeId::ROOT, Duration::ZERO));
            close(&mut state, link, 0..count, now);
        }
        state
    }

    fn close(state: &mut State, link: LinkId, files: Range<u64>, now: Instant) {
        for file in files {
            let inode = InodeId((u64::from(link.0) << 32) + file);
            state.put_new(inode, Waiting::changed(link, now, Duration::ZERO), now);
        }
    }

    /// Begins as many files as there are slots for.
    fn begin(state: &mut State, now: Instant) -> Vec<(InodeId, Waiting)> {
        let mut begun = Vec::new();
        while state.under_way.len() < FILES_MAX
            && let Some((id, waiting)) = state.take(now, |_| true)
        {
            state.under_way.insert(id, UnderWay { link: waiting.link, again: None });
            begun.push((id, waiting));
        }
        begun
    }

    /// When the next file may be sent, if none has to end before.
    fn next(state: &State) -> Option<Instant> {
        state.ready().map(|(_, ready)| ready).min()
    }

    /// The links of those that begin.
    fn turns(state: &mut State, now: Instant) -> Vec<LinkId> {
        begin(state, now).into_iter().map(|(_, waiting)| waiting.link).collect()
    }

    /// One file of a link has gone.
    fn end(state: &mut State, link: LinkId) {
        let mut under_way = state.under_way.iter();
        let (&id, _) = under_way.find(|(_, one)| one.link == link).unwrap();
        state.under_way.remove(&id);
    }

    #[test]
    fn a_link_alone_has_all_slots() {
        let now = Instant::now();
        let mut state = state([(LINK, 100)], now);
        assert_eq!(turns(&mut state, now), [LINK; FILES_MAX]);
    }

    #[test]
    fn what_another_link_closes_goes_at_once_and_then_both_have_as_many_slots() {
        let now = Instant::now();
        let mut state = state([(LINK, 5_000), (OTHER, 0)], now);
        assert_eq!(turns(&mut state, now), [LINK; LINK_FILES_MAX]);
        assert_eq!(next(&state), None, "it has what it may have");
        close(&mut state, OTHER, 0..100, now);
        assert_eq!(turns(&mut state, now), [OTHER; FILES_MAX - LINK_FILES_MAX]);
        while state.busy(LINK) > FILES_MAX / 2 {
            end(&mut state, LINK);
            assert_eq!(turns(&mut state, now), [OTHER]);
        }
        for link in [OTHER, LINK, LINK, OTHER] {
            end(&mut state, link);
            assert_eq!(turns(&mut state, now), [link]);
        }
    }

    #[test]
    fn more_links_than_slots_take_turns() {
        let now = Instant::now();
        let links: Vec<LinkId> = (1..=20).map(LinkId).collect();
        let mut state = state(links.iter().map(|link| (*link, 3)), now);
        let mut served = turns(&mut state, now);
        while served.len() < 60 {
            end(&mut state, served[served.len() - FILES_MAX]);
            served.extend(turns(&mut state, now));
        }
        let rounds: Vec<LinkId> = [&links[..]; 3].concat();
        assert_eq!(served, rounds);
    }

    #[test]
    fn a_bucket_that_is_away_has_one_slot_until_a_file_goes() {
        let now = Instant::now();
        let mut state = state([(LINK, 10), (OTHER, 1)], now);
        let begun = begin(&mut state, now);
        assert_eq!(begun.len(), 11);
        for (id, waiting) in begun.into_iter().filter(|(_, waiting)| waiting.link == LINK) {
            state.under_way.remove(&id);
            state.fail(id, waiting, ErrorKind::BucketUnavailable.into(), now);
        }
        assert_eq!(state.links[&LINK].failing.len(), 10);
        // Its files are due in 2 s by themselves.
        let later = next(&state).unwrap();
        assert_eq!(later.duration_since(now), Duration::from_secs(30));
        assert!(turns(&mut state, now + Duration::from_secs(2)).is_empty());
        close(&mut state, OTHER, 1..3, now);
        assert_eq!(turns(&mut state, now), [OTHER; 2]);
        assert_eq!(turns(&mut state, later), [LINK]);
        assert_eq!(next(&state), None, "nothing of it goes before that has ended");
        // That one goes.
        end(&mut state, LINK);
        assert!(state.links.get_mut(&LINK).unwrap().standing.handle_sent());
        assert_eq!(turns(&mut state, later), [LINK; 9]);
    }

    #[test]
    fn failures_of_files_leave_their_link_as_it_was() {
        let now = Instant::now();
        let mut state = state([(LINK, 10), (OTHER, 0)], now);
        for (id, waiting) in begin(&mut state, now) {
            state.under_way.remove(&id);
            state.fail(id, waiting, ErrorKind::Conflict.into(), now);
        }
        close(&mut state, LINK, 10..15, now);
        assert_eq!(turns(&mut state, now), [LINK; 5]);
    }
}
