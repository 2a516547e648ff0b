//! flush, fsync and commit: how buffered bytes reach the targets, and the server hears of them.
//!
//! ```text
//!   buffer ──send_slot──▶ targets acknowledge ──commit──▶ other mounts see size and time
//!                              └──sync targets──▶ durable commit ──▶ fsync returns
//! ```
//!
//! Who flushes waits for what was written by then, and not for others who write on: what is on its
//! way behind that is no reason to wait, and no commit tells of a size past it.
//!
//! A failure of a write that its program believes done is recorded in the file and reported once by
//! every handle at its next fsync or close; writes through it fail before that, twice.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use millrace_protocol::metadata::Commit;
use millrace_types::{ErrorKind, Failure};

use crate::{
    cache::write_buffer::{Awaited, Flight, SlotIndex},
    fs::{
        FileSystem, REFRESH_PAUSE, REFRESHES_MAX,
        file::{Access, File, State},
        handle::{FileHandle, Occasion},
        inline::Bytes,
    },
};

impl FileSystem {
    /// `close`: everything written is visible to all mounts and safe from this client's death.
    ///
    /// # Errors
    /// Failures of writes that were not told yet, which stay so ([`FileHandle::tell`]), and of the
    /// commit.
    pub(crate) async fn flush(&self, handle: &FileHandle) -> Result<(), Failure> {
        self.publish_inline(&handle.file).await?;
        self.flush_file(&handle.file).await;
        handle.check_told(Occasion::Close)?;
        self.commit(&handle.file, false).await?;
        // While it waited for another commit that may have failed for good.
        handle.check_told(Occasion::Close)
    }

    /// Whether [`Self::flush`] has nothing to do and nothing to say.
    pub(crate) fn is_settled(&self, handle: &FileHandle) -> bool {
        let is_clean = {
            let state = handle.file.state();
            !state.is_dirty() && !state.buffer.has_flights()
        };
        // Otherwise a commit of others may be on its way, for which a close waits.
        is_clean
            && handle.file.commit.try_lock().is_ok()
            && handle.check_told(Occasion::Close).is_ok()
    }

    /// Whether something that was written is not at the targets, of whatever handle.
    pub(crate) fn holds_bytes(&self, handle: &FileHandle) -> bool {
        let state = handle.file.state();
        state.buffer.held_bytes() > 0 || state.buffer.has_flights()
    }

    /// `close` by a process that only inherited the handle: the same, without waiting for it.
    pub(crate) fn flush_aside(&self, handle: Arc<FileHandle>) {
        self.spawn(|this| async move {
            this.flush_file(&handle.file).await;
            // The writer's own close commits again and reports.
            drop(this.commit(&handle.file, false).await);
        });
    }

    /// `fsync`: everything written survives the loss of power of every server, whoever has written
    /// it, here through whichever open or on another host that has closed or synced the file.
    ///
    /// # Errors
    /// As [`Self::flush`]; [`ErrorKind::Lost`] when a target lost acknowledged bytes in between, or
    /// the metadata server a change.
    pub(crate) async fn fsync(&self, handle: &FileHandle) -> Result<(), Failure> {
        let file = &handle.file;
        let (losses, is_told, is_new) = {
            let state = file.state();
            (state.losses, !state.is_dirty(), state.unpublished.is_some())
        };
        if is_told {
            // Nothing goes to the server of which the answer would show what others have done.
            self.renew_view(file).await?;
        }
        self.publish_inline(file).await?;
        self.flush_file(file).await;
        handle.check_told(Occasion::Sync)?;
        let is_shown = self.sync_stored(file, losses).await?;
        // Of a new file others have had nothing yet.
        if !(is_shown || is_told || is_new) {
            // Another commit has told of everything, and may have been made before this began.
            self.renew_view(file).await?;
            self.commit(file, true).await?;
        }
        let has_others = file.state().others_bytes().is_some();
        if has_others {
            self.sync_targets(file, losses, true).await?;
        }
        self.record_lost(file);
        handle.check_told(Occasion::Sync)
    }

    /// What this mount has stored survives the loss of power of every server; `losses` is how many
    /// there were when it was written. Tells whether the server was asked on the way, and has shown
    /// what others have done.
    ///
    /// # Errors
    /// As [`Self::sync_targets`] and [`Self::commit`].
    pub(super) async fn sync_stored(&self, file: &File, losses: u64) -> Result<bool, Failure> {
        self.sync_targets(file, losses, false).await?;
        self.commit(file, true).await
    }

    /// Sees to it that what is known of a file is no older than this call.
    async fn renew_view(&self, file: &File) -> Result<(), Failure> {
        let caller = file.state().caller.clone();
        if self.attributes_kept(&caller, file.inode).is_some() {
            return Ok(());
        }
        // Kept where nobody else writes the file, so that it is asked for once.
        let (reply, lease) = self.show_inode(&caller, file.inode).await?;
        file.state().accept_under(reply, lease)
    }

    /// As [`Self::flush_file`], for what needs the bytes at the targets now; `before` is how many
    /// failures there were when they came into the buffer.
    ///
    /// # Errors
    /// The newest failure since, which stays to be reported as well.
    pub(crate) async fn flush_telling(&self, file: &Arc<File>, before: u64) -> Result<(), Failure> {
        let written = file.state().buffer.written();
        self.flush_part_telling(file, written, before).await
    }

    /// As [`Self::flush_telling`], for no more than this.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn flush_part_telling(
        &self,
        file: &Arc<File>,
        written: Awaited,
        before: u64,
    ) -> Result<(), Failure> {
        self.flush_part(file, written).await;
        let state = file.state();
        match &state.failure {
            Some(failure) if state.failures > before => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    /// Sends all that is buffered and waits until it has landed; what is written meanwhile may not
    /// have. Failures are recorded.
    pub(crate) async fn flush_file(&self, file: &Arc<File>) {
        let written = file.state().buffer.written();
        self.flush_part(file, written).await;
    }

    /// As [`Self::flush_file`], for no more than this.
    async fn flush_part(&self, file: &Arc<File>, written: Awaited) {
        loop {
            // Each time: meanwhile it may have been sent to the server with its bytes.
            if let Err(failure) = self.settle_inline(file).await {
                // What was written stays here.
                return file.state().record_failure(failure);
            }
            let landed = file.landed.notified();
            let (slots, before) = {
                let state = file.state();
                if !state.buffer.holds(written) {
                    return;
                }
                (state.buffer.dirty_slots_of(written), state.landings)
            };
            stream::iter(slots)
                .for_each_concurrent(SLOTS_AT_ONCE, |slot| self.send_slot(file, slot))
                .await;
            let settled = {
                let state = file.state();
                state.landings != before || !state.buffer.has_flights_before(written)
            };
            if !settled {
                // What is left waits behind flights that somebody else has sent.
                landed.await;
            }
        }
    }

    /// Sends what is dirty in one slot, unless something of it is on its way already.
    ///
    /// Must run to its end: whoever flushes waits for it.
    pub(crate) async fn send_slot(&self, file: &Arc<File>, slot: SlotIndex) {
        let flights = {
            let mut state = file.state();
            // Who flushes the file finds out, and comes again.
            let waits = state.is_inline_unknown();
            (!waits).then(|| state.buffer.take_off(slot)).flatten()
        };
        let Some(flights) = flights else {
            return;
        };
        let mut outcome = Ok(());
        let mut unstored = None;
        for flight in &flights {
            outcome = self.store(file, flight).await;
            if outcome.is_err() {
                let end = flights.last().map(Flight::end);
                unstored = end.map(|end| flight.start..end);
                break;
            }
        }
        let mut state = file.state();
        if let Some(range) = &unstored {
            state.record_unstored(range);
        }
        if let Err(failure) = outcome {
            if !state.has_failed_like(&failure) {
                tracing::warn!(inode = %file.inode, %failure, "a write cannot be stored");
            }
            state.record_failure(failure);
        }
        if unstored.is_some() {
            // Before the bytes are gone: who opens the file then must not keep the kernel's pages.
            self.kept.forget(file.inode);
        }
        let bytes = state.buffer.land(slot);
        state.landings += 1;
        state.release_memory(bytes);
        if unstored.is_some() {
            state.handle_unstored_end();
        }
        drop(state);
        if unstored.is_some() {
            self.drop_unstored(file);
        }
        file.landed.notify_waiters();
    }

    /// Stores one flight, with a fresh view as often as the present one is old.
    async fn store(&self, file: &File, flight: &Flight) -> Result<(), Failure> {
        let mut told = false;
        for attempt in 0..REFRESHES_MAX {
            let failure = match self.store_once(file, flight).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure.kind {
                ErrorKind::StaleContent | ErrorKind::StaleEpoch | ErrorKind::KeyRetired => {}
                ErrorKind::Forbidden => {
                    // Another session may have begun on the way.
                    self.check_written_in(flight.session)?;
                    if told {
                        return Err(failure);
                    }
                    told = true;
                    self.tell_writers(file).await?;
                }
                _ => return Err(failure),
            }
            if attempt > 0 {
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            self.refresh(file).await?;
        }
        Err(Failure::new(ErrorKind::Stale, "the file changes faster than it can be written"))
    }

    async fn store_once(&self, file: &File, flight: &Flight) -> Result<(), Failure> {
        let access = self.writable(file).await?;
        // That may be of the next session already.
        self.check_written_in(flight.session)?;
        let written = self.cluster.write(&access, flight.start, flight.data.clone()).await?;
        let range = flight.start..flight.end();
        file.state().record_stored(&range, &access, written.target, written.loss_count);
        Ok(())
    }

    /// The way to the content that a write goes to from here on. Targets still take what is written
    /// to one that another host has cut or replaced, where nobody would find it: whoever cuts a
    /// file is answered when its writers have heard of it, who ask anew before they write on. What
    /// they write behind its new end leaves a hole, of which the server hears first. Bytes that
    /// live in the inode are at the targets before anything is written there.
    ///
    /// # Errors
    /// [`ErrorKind::StaleContent`] when the server has shown a content without a way to it, as
    /// while a session takes the place of one that ended; and what the server answers.
    pub(super) async fn writable(&self, file: &File) -> Result<Arc<Access>, Failure> {
        self.settle_inline(file).await?;
        let is_old = {
            let state = file.state();
            state.is_access_old()
                || state.inline.is_some()
                || !self.names.content_stands(file.inode, state.viewed)
        };
        if is_old {
            self.refresh(file).await?;
        }
        if file.state().has_undeclared_hole() {
            self.declare_sparse(file).await?;
        }
        let state = file.state();
        if state.is_access_old() || state.has_undeclared_hole() || state.inline.is_some() {
            let text = "the server shows a content to which it gives no way";
            return Err(Failure::new(ErrorKind::StaleContent, text));
        }
        drop(state);
        file.access()
    }

    /// Makes durable what the targets have acknowledged before, and finds out whether they still
    /// have it; `with_others`: and what others may have stored, unless that is known to be durable.
    /// Whoever comes while another one does that waits for its end: what it has taken on is in
    /// nobody else's list.
    ///
    /// # Errors
    /// What the targets answer; [`ErrorKind::Lost`], which is recorded as well, for everybody who
    /// has waited and for every other handle.
    async fn sync_targets(
        &self,
        file: &File,
        losses: u64,
        with_others: bool,
    ) -> Result<(), Failure> {
        let _one_at_a_time = file.syncing.lock().await;
        let (unsynced, others) = {
            let mut state = file.state();
            if let Some(failure) = state.lost_since(losses) {
                return Err(failure);
            }
            let others = if with_others { state.others_bytes() } else { None };
            (state.durable.begin_sync(), others)
        };
        let expected = unsynced.into_iter().map(|(target, expected)| (target, Some(expected)));
        let mut targets: BTreeMap<_, _> = expected.collect();
        if let Some((layout, size, _)) = &others {
            for target in self.cluster.targets_of(layout, *size).await? {
                targets.entry(target).or_insert(None);
            }
        }
        let synced: Vec<_> = stream::iter(targets)
            .map(async |(target, expected)| (target, expected, self.cluster.sync(target).await))
            .buffer_unordered(TARGETS_AT_ONCE)
            .collect()
            .await;
        let mut outcome = Ok(());
        for (target, expected, answer) in synced {
            let failure = match answer {
                Ok(count) if expected.is_none_or(|expected| expected == count) => {
                    file.state().durable.end_sync(target, true);
                    continue;
                }
                Ok(_) => {
                    let words = format!("target {target} lost writes that it had acknowledged");
                    Failure::new(ErrorKind::Lost, words)
                }
                Err(failure) => failure,
            };
            let is_lost = failure.kind == ErrorKind::Lost;
            let mut state = file.state();
            // Otherwise the next fsync tries again.
            state.durable.end_sync(target, is_lost);
            if is_lost {
                tracing::error!(inode = %file.inode, %failure, "fsync fails");
                state.record_loss(failure.clone());
            }
            drop(state);
            outcome = Err(failure);
        }
        if let (Ok(()), Some((_, _, count))) = (&outcome, others) {
            file.state().durable.record_whole(count);
        }
        outcome
    }

    /// Tells the server the size and time of what the targets have acknowledged, as far as nothing
    /// before that is on its way: then the rest is still to be told. With `durable` all that the
    /// server has shown of the file is durable as well. Returns whether it had to be told anything,
    /// and has shown the file as it is since this began.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn commit(&self, file: &File, durable: bool) -> Result<bool, Failure> {
        let _one_at_a_time = file.commit.lock().await;
        self.publish(file, Bytes::AtTargets).await?;
        if file.state().has_unstored_hole() {
            self.declare_hole(file).await?;
        }
        let (stored, end, written_at, needed, shown, whole) = {
            let state = file.state();
            let (needed, shown) = (state.needs_commit(), state.attributes.change_count);
            let whole = state.durable.whole();
            (state.stored, state.end_to_tell(), state.written_at, needed, shown, whole)
        };
        if !needed {
            let is_durable = {
                let mut state = file.state();
                state.record_commit(stored.acknowledgements);
                state.durable.is_told(shown)
            };
            if durable && !is_durable {
                self.sync_log().await?;
                let mut state = file.state();
                // Otherwise it may have lost what it had shown, and counts anew.
                if state.attributes.change_count == shown {
                    state.durable.record_told(shown);
                }
            }
            return Ok(false);
        }
        let request = |operation| Commit {
            operation,
            inode: file.inode,
            generation: stored.version.0,
            write_epoch: stored.version.1,
            end,
            written_at,
            durable,
        };
        let due = file.state().privileges.take_due();
        let put_back = |_: &Failure| file.state().privileges.put_back(due);
        let committed = self.change(request, &[], Some(file.inode)).await;
        let reply = committed.inspect_err(put_back).map_err(not_told)?;
        if durable {
            self.record_synced(reply.index);
        }
        let looked_at = {
            let mut state = file.state();
            if end == stored.end {
                state.record_commit(stored.acknowledgements);
            }
            let (before, count) = (state.attributes.change_count, reply.attributes.change_count);
            if durable {
                state.durable.record_told(count);
            }
            let shown =
                reply.content.as_ref().map(|content| (content.generation, content.write_epoch));
            // Otherwise it may have changed nothing, and somebody else did.
            let own = written_at.is_some() && shown == Some(stored.version);
            state.accept(reply)?;
            if own {
                state.record_own_change(before);
                state.durable.handle_own_change(whole, count);
            }
            state.privileges.end(due).then(|| state.attributes.clone())
        };
        if let Some(attributes) = looked_at {
            // Another host may have set them before it has heard of these bytes.
            let taken = self.take_privilege_bits(file.inode, attributes).await;
            taken.inspect_err(put_back)?;
        }
        Ok(true)
    }

    /// Tells the server that what was not stored is a hole. Where it does not have it, as of a file
    /// that has lost bytes, that is said once.
    async fn declare_hole(&self, file: &File) -> Result<(), Failure> {
        let declared = self.declare_sparse(file).await;
        let mut state = file.state();
        match &declared {
            Ok(()) => state.durable.record_untold(),
            Err(failure) if failure.kind.is_transient() => {}
            Err(_) => state.forget_unstored(),
        }
        declared
    }

    /// Drops what was fetched for nothing, and sends what is buffered: here and in every file.
    pub(crate) fn make_room(&self, first: &Arc<File>) {
        let mut files = vec![Arc::clone(first)];
        files.extend(self.files.all());
        for file in files {
            let slots = {
                let mut state = file.state();
                state.pieces.evict(Instant::now(), Duration::ZERO, |_| false);
                state.buffer.dirty_slots()
            };
            for slot in slots {
                let file = Arc::clone(&file);
                self.spawn(|this| async move { this.send_slot(&file, slot).await });
            }
        }
    }
}

impl State {
    /// One past the last byte that a commit may tell of. In a file without holes nothing is missing
    /// before its end: that does not pass bytes on their way that nobody has stored there before.
    pub(super) fn end_to_tell(&self) -> u64 {
        let growth = self.buffer.first_growth().filter(|_| !self.is_sparse());
        growth.map_or(self.stored.end, |start| start.min(self.stored.end))
    }
}

/// What a commit says that was refused because the server does not know that the file is open for
/// writing: of what was written in a session that ended, the next one has nothing to tell.
fn not_told(failure: Failure) -> Failure {
    match failure.kind {
        ErrorKind::NotPermitted => {
            let words = "the session ended before the server had heard of the writes";
            Failure::new(ErrorKind::SessionGone, words)
        }
        _ => failure,
    }
}

/// Slots of one file that are sent at the same time by one flush: fills 16 targets once.
const SLOTS_AT_ONCE: usize = 16;

/// Targets that are synced at the same time.
const TARGETS_AT_ONCE: usize = 16;
