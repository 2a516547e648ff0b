//! The engine's part in the life of sessions: how many there are, how they end, who gets no ticket
//! any more, and what they have to declare after a restart.

use std::{mem, ops::Bound};

use millrace_types::{ErrorKind, Failure, HostId, InodeId, SessionId};

use super::Core;
use crate::{
    command::{Command, Opener},
    engine::opens::{OPENS_MAX, ends},
    leases::table::UNDECLARED_TIMES,
    namespace::tree,
    store::{
        StoreError, View, borrow, keys, prefix_end,
        records::{self, OpenRecord},
    },
};

/// Opens of a session that are looked at at once.
const OPENS_A_LOOK: usize = 1024;

/// Opens of what has no name that end in one turn, in which all others wait.
const OPENS_A_TURN: usize = 4 * OPENS_MAX;

impl Core {
    /// Ends every session whose lease ran out, the oldest first, behind those whose end has begun.
    /// With much to end, called again, this goes on. Looks before who lets the others wait for too
    /// long, and gets no ticket from now on.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn end_dead_sessions(&mut self) -> Result<(), Failure> {
        let (now, session_end) = (self.look().now, self.session_end());
        for (session, reason) in self.leases.poll_overdue(now, session_end) {
            tracing::warn!(%session, %reason, "session holds others up: it gets no ticket until it \
                stops, and ends when its last one runs out");
        }
        let mut left = OPENS_A_TURN;
        loop {
            let begun = self.ending.keys().next().copied();
            let dead = begun.or_else(|| self.expiry.poll_dead(now));
            let Some(session) = dead else { return Ok(()) };
            if begun.is_none() {
                self.tell_end(session);
            }
            if !self.end_within(session, &mut left)? {
                return Ok(());
            }
        }
    }

    fn tell_end(&self, session: SessionId) {
        match self.leases.owed(session) {
            Some(reason) => tracing::warn!(%session, %reason, "session ends: it held others up"),
            None => tracing::warn!(%session, "session ends: its lease ran out"),
        }
    }

    /// Whether the session may get a ticket: whoever renews it lives, and others wait for what it
    /// owes for as long as it does.
    ///
    /// # Errors
    /// [`ErrorKind::SessionGone`] once its end has begun; [`ErrorKind::Busy`] while it owes
    /// something for too long.
    pub fn check_owed(&self, session: SessionId) -> Result<(), Failure> {
        if self.ending.contains_key(&session) {
            return Err(ErrorKind::SessionGone.into());
        }
        let Some(owed) = self.leases.owed(session) else { return Ok(()) };
        let text = format!("{session} gets no ticket, because others wait for it: {owed}");
        Err(Failure::new(ErrorKind::Busy, text))
    }

    /// How many sessions the host has, and how many there are.
    #[must_use]
    pub fn session_counts(&self, host: HostId) -> (usize, usize) {
        let of_host = self.sessions_by_nonce.keys().filter(|(of, _)| *of == host).count();
        (of_host, self.sessions_by_nonce.len())
    }

    /// Ends a session and everything it holds, as far as that goes in one turn. Whether it has
    /// ended; otherwise, called again, this goes on, and so does [`Self::end_dead_sessions`].
    ///
    /// A session whose end has begun has lost some of what it had open and nobody can name, and
    /// gets no ticket any more. That is in memory: a session that the server's own end or crash has
    /// caught so, and that is renewed after the next start, lives on, and finds those files stale.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn end_session(&mut self, session: SessionId) -> Result<bool, Failure> {
        let mut left = OPENS_A_TURN;
        self.end_within(session, &mut left)
    }

    /// Ends a session, if what it has open that has no name is no more than what is left of this
    /// turn; otherwise a part of that. The contents go, and are too many at times for the command
    /// that ends the session.
    fn end_within(&mut self, session: SessionId, left: &mut usize) -> Result<bool, Failure> {
        let opened = keys::opened_by(session);
        let end = prefix_end(&opened);
        let mut from = match self.ending.get(&session) {
            Some(&last) => Bound::Excluded(keys::opened(session, last)),
            None => Bound::Included(opened),
        };
        let mut opens = Vec::new();
        loop {
            let page = self.view().scan(borrow(&from), borrow(&end), OPENS_A_LOOK);
            let page = page.map_err(|error| self.failure(error.into()))?;
            let Some((last, _)) = page.last() else { break };
            from = Bound::Excluded(last.clone());
            for (key, _) in &page {
                let open = nameless(self.view(), session, key);
                opens.extend(open.map_err(|error| self.failure(error.into()))?);
            }
            while opens.len() > OPENS_MAX {
                if *left < OPENS_MAX {
                    return Ok(false);
                }
                *left -= OPENS_MAX;
                let rest = opens.split_off(OPENS_MAX);
                self.end_part(session, &mem::replace(&mut opens, rest))?;
            }
        }
        if *left < opens.len() {
            return Ok(false);
        }
        *left -= opens.len();
        self.execute(None, Command::CloseSession(session))?;
        Ok(true)
    }

    /// Ends some opens of a session, whose end has begun with that.
    fn end_part(
        &mut self,
        session: SessionId,
        opens: &[(InodeId, OpenRecord)],
    ) -> Result<(), Failure> {
        // Before the first command: when one fails, nobody knows at once whether it is in the log.
        let reached = self.ending.entry(session).or_default();
        let last = opens.last().map_or(*reached, |(inode, _)| *inode);
        for command in ends(session, opens) {
            self.execute(None, command)?;
        }
        self.ending.insert(session, last);
        Ok(())
    }

    /// The session that the node opened with this number, if it is alive.
    #[must_use]
    pub fn session_of(&self, host: HostId, nonce: u64) -> Option<SessionId> {
        self.sessions_by_nonce.get(&(host, nonce)).copied()
    }

    /// The session has declared whatever it has from before the restart. When nobody else is waited
    /// for, what was not declared is dropped at once, not by the next look.
    ///
    /// # Errors
    /// As [`Self::execute`]; the next look goes on.
    pub fn handle_all_told(&mut self, session: SessionId) -> Result<(), Failure> {
        self.readers.handle_told(session);
        if self.readers.looked().is_some() && self.room.is_enough() {
            self.drop_undeclared_readers()?;
        }
        Ok(())
    }

    /// Lets go of those who had time to declare after a restart and did not.
    pub(super) fn end_declaring(&mut self) -> Result<(), Failure> {
        let now = self.look().now;
        // An older client does not say when it has come to the end of what it reads, and others may
        // not get to it. So they have as long as others wait for them.
        let told_by = self.declaring_since.plus(self.session_end() * UNDECLARED_TIMES);
        let is_over = now > told_by && self.readers.is_declaring();
        // A full disk would take none of it.
        if (is_over || self.readers.looked().is_some()) && self.room.is_enough() {
            if is_over {
                self.readers.handle_declared();
            }
            self.drop_undeclared_readers()?;
        }
        // Whoever renews its ticket lives, and its locks with it. A client that cannot declare them
        // for so long, which it does first, has lost them, rather than stop all others for ever.
        if now > self.declaring_since.plus(self.lease() * 2) {
            let late = self.locks.handle_declaring_over();
            if late > 0 {
                tracing::warn!(sessions = late, "locks that were not declared are given up");
            }
        }
        Ok(())
    }

    /// Sessions that had time to declare what they read do not read the rest: looks at some of what
    /// is open, and called again goes on. What fails the next look takes up again.
    fn drop_undeclared_readers(&mut self) -> Result<(), Failure> {
        let Some((inode, session)) = self.readers.looked() else { return Ok(()) };
        let after = keys::open(inode, session);
        let store = &*self.store.0;
        let opens = tree::scan_after::<OpenRecord>(store, &[keys::OPENS], &after, OPENS_A_LOOK);
        let opens = opens.map_err(|error| self.failure(error.into()))?;
        let is_last = opens.len() < OPENS_A_LOOK;
        let mut through = None;
        for (key, open) in opens {
            let (Some(inode), Some(session)) = (keys::number_at(&key, 1), keys::number_at(&key, 9))
            else {
                continue;
            };
            let (inode, session) = (InodeId(inode), SessionId(session));
            if open.reads && !self.readers.is_reading(session, inode) {
                self.execute(None, Command::DropReader(Opener { session, inode }))?;
            }
            through = Some((inode, session));
        }
        self.readers.handle_looked(through.filter(|_| !is_last));
        Ok(())
    }
}

/// What a session has open by this key, if it has no name and nobody else has it open. What others
/// have open does not go with this session, and is left to the command that ends it: whatever the
/// session has written there counts as that of a dead writer.
fn nameless(
    view: &dyn View,
    session: SessionId,
    key: &[u8],
) -> Result<Option<(InodeId, OpenRecord)>, StoreError> {
    let Some(inode) = keys::number_at(key, 9).map(InodeId) else { return Ok(None) };
    if tree::find(view, inode)?.is_none_or(|found| found.links > 0) {
        return Ok(None);
    }
    if tree::scan::<OpenRecord>(view, &keys::opens(inode), 2)?.len() > 1 {
        return Ok(None);
    }
    let open = records::read::<OpenRecord>(view, &keys::open(inode, session))?;
    Ok(open.map(|open| (inode, open)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_protocol::{
        metadata::NewNode,
        session::{AllTold, Caller, Operation, RenewTicket, Role},
    };
    use millrace_runtime::{Clock, Random, VirtualTime};
    use millrace_types::{ByteLen, ClusterId, FileName, GIB, TargetId, Timestamp};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        command::{Create, CreateUnnamed, OpenSession, OpenWrite, Outcome, RegisterHost, Remove},
        engine::{
            room::Room,
            startup::{EngineSettings, StoreKind, open},
        },
        ops::{self, Client},
        sessions::Readers,
    };

    const HOST: HostId = HostId([1; 16]);

    /// Above the id of whatever a test makes.
    const LATER: InodeId = InodeId(u64::MAX);

    /// A core whose clock only the test moves, and its sessions.
    struct World {
        core: Core,
        time: VirtualTime,
        sessions: Vec<SessionId>,
        dir: TempDir,
    }

    fn client() -> Client {
        Client {
            role: Role::Client,
            host: HOST,
            fingerprint: [1; 32],
            subtree: None,
            squash_root: false,
            settled: Vec::new(),
        }
    }

    impl World {
        fn new() -> Self {
            let dir = TempDir::new().unwrap();
            let (clock, time) = Clock::manual(Timestamp::from_parts(1_800_000_000, 0));
            let settings = EngineSettings {
                store: StoreKind::Memory,
                reserve_bytes: 0,
                clock,
                random: Random::seeded(7),
                ..EngineSettings::new(dir.path().join("metadata"), ClusterId([7; 16]))
            };
            let mut core = open(settings).unwrap();
            core.tick().unwrap();
            Self { core, time, sessions: Vec::new(), dir }
        }

        fn open(&mut self, nonce: u64) -> SessionId {
            let open = OpenSession { host: HOST, host_name: "client".to_owned(), nonce };
            let opened = self.core.execute(None, Command::OpenSession(open)).unwrap();
            let Outcome::Session(session) = opened else { panic!("a session") };
            self.sessions.push(session);
            self.renew(session).unwrap();
            session
        }

        fn renew(&mut self, session: SessionId) -> Result<(), ErrorKind> {
            let request = RenewTicket { session };
            let renewed = ops::session::renew(&mut self.core, &client(), &request);
            renewed.map(drop).map_err(|failure| failure.kind)
        }

        /// The session says that it has told all, to a life so many after the present one.
        fn tell(&mut self, session: SessionId, other: u64) -> Result<(), ErrorKind> {
            let incarnation = self.core.incarnation().wrapping_add(other);
            let request = AllTold { session, incarnation };
            let told = ops::session::all_told(&mut self.core, &client(), &request);
            told.map(drop).map_err(|failure| failure.kind)
        }

        /// Lets so many seconds pass, in each of which every session asks for a ticket.
        fn pass(&mut self, seconds: u32) {
            for _ in 0..seconds {
                self.time.advance(Duration::from_secs(1));
                for session in self.sessions.clone() {
                    // One that holds others up is refused.
                    self.renew(session).unwrap_or_default();
                }
                self.core.tick().unwrap();
            }
        }

        /// Without one, no file can be made.
        fn register_target(&mut self) {
            let targets = vec![(TargetId([1; 8]), ByteLen(GIB))];
            let (name, addresses) = ("store".to_owned(), vec!["127.0.0.1:1".to_owned()]);
            let register = RegisterHost { host: HOST, name, addresses, targets };
            self.core.execute(None, Command::RegisterHost(register)).unwrap();
        }

        /// Leaves the disk room for changes, or none.
        fn set_room(&mut self, is_enough: bool) {
            let reserve = if is_enough { 0 } else { u64::MAX };
            self.core.room = Room::new(self.dir.path().to_owned(), reserve);
        }

        /// Something without a name that the session reads, as the log knows.
        fn read_nameless(&mut self, session: SessionId) -> InodeId {
            let (caller, parent) = (Caller::ROOT, InodeId::ROOT);
            let name = FileName::parse(b"name").unwrap();
            let inode = self.core.new_inode_id().unwrap();
            let create = Create {
                caller: caller.clone(),
                parent,
                name: name.clone(),
                node: NewNode::Fifo,
                mode: 0o600,
                inode,
                seed: 0,
                open: None,
                exclusive: true,
            };
            self.core.execute(None, Command::Create(create)).unwrap();
            let readers = vec![session];
            let remove = Remove { caller, parent, name, directory: false, readers };
            self.core.execute(None, Command::Remove(remove)).unwrap();
            inode
        }

        /// Files without names that the session has open for writing.
        fn write_nameless(&mut self, session: SessionId, count: usize) -> Vec<InodeId> {
            let one = |_| {
                let inode = self.core.new_inode_id().unwrap();
                let create = CreateUnnamed {
                    caller: Caller::ROOT,
                    directory: InodeId::ROOT,
                    inode,
                    seed: 0,
                    mode: 0o600,
                    umask: 0,
                    session,
                    nameable: false,
                };
                self.core.execute(None, Command::CreateUnnamed(create)).unwrap();
                inode
            };
            (0..count).map(one).collect()
        }

        fn is_there(&self, inode: InodeId) -> bool {
            tree::find(self.core.view(), inode).unwrap().is_some()
        }
    }

    #[test]
    fn a_session_that_holds_others_up_gets_no_ticket_and_ends_with_its_last_one() {
        let mut world = World::new();
        let [deaf, other] = [1, 2].map(|nonce| world.open(nonce));
        let inode = world.read_nameless(deaf);
        world.core.leases.handle_cut(InodeId::ROOT, [deaf]);
        let wait = world.core.leases.heard_of_cut(InodeId::ROOT, other, true);
        let wait = wait.expect("it has not heard");
        world.pass(160);
        assert_eq!(world.renew(deaf), Ok(()));
        world.pass(1);
        assert_eq!(world.renew(deaf), Err(ErrorKind::Busy));
        // The last ticket is of this second, and good for 30; clocks may differ by two.
        world.pass(32);
        assert!(!wait.is_over() && world.is_there(inode), "targets may still take its writes");
        world.pass(1);
        assert!(wait.is_over() && !world.is_there(inode));
        assert_eq!(world.renew(deaf), Err(ErrorKind::SessionGone));
        assert_eq!((world.core.session_of(HOST, 1), world.renew(other)), (None, Ok(())));
    }

    #[test]
    fn a_session_with_many_files_without_names_ends_in_small_commands() {
        let mut world = World::new();
        world.register_target();
        let [session, other] = [1, 2].map(|nonce| world.open(nonce));
        let read = world.read_nameless(session);
        let mut written = world.write_nameless(session, 2 * OPENS_MAX + 10);
        let kept = world.write_nameless(other, 1)[0];
        let before = world.core.last_index();
        assert!(world.core.end_session(session).unwrap());
        // Two parts, of which the first has a reader too, and the end with what was left.
        assert_eq!(world.core.last_index().0 - before.0, 4);
        written.push(read);
        assert!(written.iter().all(|&inode| !world.is_there(inode)));
        assert!(world.is_there(kept), "another session has it open");
        assert_eq!(world.core.session_of(HOST, 1), None);
        let queued = world.core.file_system().unwrap().reclaim_entries;
        assert_eq!(queued, 2 * OPENS_MAX as u64 + 10, "each once");
    }

    #[test]
    fn the_end_of_many_files_without_names_has_others_know_of_a_dead_writer() {
        let mut world = World::new();
        world.register_target();
        let [session, other] = [1, 2].map(|nonce| world.open(nonce));
        let shared = world.write_nameless(session, 1)[0];
        let opener = Opener { session: other, inode: shared };
        let open = OpenWrite { caller: None, opener, truncate: false };
        world.core.execute(None, Command::OpenWrite(open)).unwrap();
        let own = world.write_nameless(session, 2 * OPENS_MAX);
        assert!(world.core.end_session(session).unwrap());
        assert!(own.iter().all(|&inode| !world.is_there(inode)));
        let content = tree::inode(world.core.view(), shared).unwrap().content().unwrap();
        assert!(content.sparse, "it may have bytes of which nobody has told");
    }

    #[test]
    fn a_session_whose_end_has_begun_gets_no_ticket_and_ends_some_turns_later() {
        let mut world = World::new();
        world.register_target();
        let [closed, silent, other] = [1, 2, 3].map(|nonce| world.open(nonce));
        let mut written = world.write_nameless(closed, 2 * OPENS_A_TURN);
        let before = world.core.last_index();
        assert!(!world.core.end_session(closed).unwrap(), "others have their turns between");
        assert_eq!(world.core.last_index().0 - before.0, 4);
        let is_gone = |world: &World, inodes: &[InodeId]| {
            inodes.iter().filter(|&&inode| !world.is_there(inode)).count()
        };
        assert_eq!(is_gone(&world, &written), OPENS_A_TURN);

        // It has lost files: it may not live on, though its end cannot be logged for now.
        world.set_room(false);
        assert_eq!(world.core.tick().unwrap_err().kind, ErrorKind::NoSpace);
        assert_eq!(world.renew(closed), Err(ErrorKind::SessionGone));
        assert_eq!((world.renew(silent), world.renew(other)), (Ok(()), Ok(())));
        world.set_room(true);
        // The next look goes on, whoever asked for the end.
        written.extend(world.write_nameless(silent, 10));
        world.sessions.retain(|&session| session == other);
        world.core.tick().unwrap();
        assert_eq!(world.core.session_of(HOST, 1), None);
        assert_eq!(is_gone(&world, &written), 2 * OPENS_A_TURN);
        // A lease later also that one ends, which is silent.
        world.pass(33);
        assert_eq!(is_gone(&world, &written), 2 * OPENS_A_TURN + 10);
        assert_eq!((world.core.session_of(HOST, 2), world.renew(other)), (None, Ok(())));
    }

    #[test]
    fn a_session_that_gives_back_at_last_gets_tickets_again() {
        let mut world = World::new();
        let deaf = world.open(1);
        world.core.leases.handle_cut(InodeId::ROOT, [deaf]);
        world.pass(170);
        assert_eq!(world.renew(deaf), Err(ErrorKind::Busy));
        let through = world.core.leases.poll_recalls(deaf).unwrap().through;
        let now = world.core.now();
        world.core.leases.handle_listening(deaf, through, now);
        world.pass(1);
        assert_eq!(world.renew(deaf), Ok(()));
        world.pass(300);
        assert_eq!(world.renew(deaf), Ok(()));
    }

    #[test]
    fn who_lives_has_as_long_to_declare_what_it_reads_as_others_wait_for_it() {
        let mut world = World::new();
        let session = world.open(1);
        let inode = world.read_nameless(session);
        world.core.readers = Readers::after_restart([session], LATER);
        world.pass(96);
        assert!(world.is_there(inode), "it may be about to tell of it");
        world.pass(1);
        assert!(!world.is_there(inode) && !world.core.readers.is_declaring());
        assert_eq!(world.renew(session), Ok(()), "it lives");
    }

    #[test]
    fn what_nobody_declared_is_dropped_at_once_when_all_have_told_or_ended() {
        let mut world = World::new();
        let [first, second, dead] = [1, 2, 3].map(|nonce| world.open(nonce));
        let [read, unread] = [(); 2].map(|()| world.read_nameless(first));
        world.core.readers = Readers::after_restart([first, second, dead], LATER);
        let again = Operation { session: first, sequence: 1, lowest_pending: 1 };
        world.core.readers.handle_open(again, read).unwrap();
        assert_eq!(world.tell(first, 1), Err(ErrorKind::Stale), "that was another life");
        assert!(world.core.readers.is_undeclared(first));
        for session in [first, first, second] {
            assert_eq!(world.tell(session, 0), Ok(()));
        }
        assert!(!world.core.readers.is_undeclared(first) && world.is_there(unread));
        // One that says nothing is waited for until it has ended.
        world.sessions.retain(|&session| session != dead);
        world.pass(32);
        assert!(world.is_there(unread));
        world.pass(1);
        assert!(!world.is_there(unread) && !world.core.readers.is_declaring());
        assert!(world.is_there(read), "it is told of");
    }

    #[test]
    fn who_tells_last_has_what_nobody_declared_dropped_before_the_answer() {
        let mut world = World::new();
        let [reader, other] = [1, 2].map(|nonce| world.open(nonce));
        let inodes = [(); 2].map(|()| world.read_nameless(reader));
        world.core.readers = Readers::after_restart([reader, other], LATER);
        world.tell(reader, 0).unwrap();
        let since = world.open(3);
        world.tell(since, 0).unwrap();
        assert!(inodes.iter().all(|&inode| world.is_there(inode)), "one may have them open");
        // A full disk takes none of it, and puts nothing off but that.
        world.set_room(false);
        world.tell(other, 0).unwrap();
        assert!(!world.core.readers.is_declaring() && world.is_there(inodes[0]));
        world.set_room(true);
        world.tell(other, 0).unwrap();
        assert!(!inodes.iter().any(|&inode| world.is_there(inode)));
        world.core.end_session(reader).unwrap();
        assert_eq!(world.tell(reader, 0), Err(ErrorKind::SessionGone));
    }

    #[test]
    fn of_much_that_was_not_declared_some_is_dropped_at_each_look() {
        let mut world = World::new();
        let session = world.open(1);
        let read = |_| world.read_nameless(session);
        let inodes: Vec<_> = (0..OPENS_A_LOOK + 10).map(read).collect();
        let left = |world: &World| inodes.iter().filter(|&&inode| world.is_there(inode)).count();
        world.core.readers = Readers::after_restart([session], LATER);
        world.pass(96);
        assert_eq!(left(&world), OPENS_A_LOOK + 10);
        world.pass(1);
        assert_eq!((left(&world), world.core.readers.is_declaring()), (10, false));
        world.set_room(false);
        world.pass(1);
        assert_eq!(left(&world), 10);
        world.set_room(true);
        world.pass(1);
        assert_eq!((left(&world), world.core.readers.looked()), (0, None));
    }

    #[test]
    fn what_was_not_declared_is_dropped_when_the_disk_has_room_again() {
        let mut world = World::new();
        let session = world.open(1);
        let inode = world.read_nameless(session);
        world.core.readers = Readers::after_restart([session], LATER);
        world.set_room(false);
        world.pass(100);
        assert!(world.is_there(inode) && world.core.readers.is_declaring());
        world.set_room(true);
        world.pass(1);
        assert!(!world.is_there(inode) && !world.core.readers.is_declaring());
        assert_eq!(world.renew(session), Ok(()), "it lives");
    }
}
