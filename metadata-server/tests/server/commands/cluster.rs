//! Commands on sessions, targets, keys and ids.

use millrace_metadata_server::{
    apply::FEATURE_LEVEL,
    command::{
        Command, Format, Loss, NewKey, NoteShown, OpenSession, ReclaimOrphans, RegisterHost,
        Repair, Spilled,
    },
    store::{
        View, keys,
        records::{ReclaimRecord, TrimRecord},
    },
};
use millrace_protocol::target::ContentName;
use millrace_types::{ByteLen, ContentGeneration, GIB, InodeId, LogIndex, TargetId, WriteEpoch};

use super::Commands;
use crate::chance::percent;

impl Commands {
    pub(super) fn register_host(&mut self) -> Command {
        let host = self.host();
        // A host's own targets, and rarely one that belongs to another.
        let own = TargetId([host.0[0]; 8]);
        let second = if percent(&self.random, 20) { self.target() } else { own };
        let mut targets = vec![(own, ByteLen(GIB)), (second, ByteLen(2 * GIB))];
        targets.dedup_by_key(|(id, _)| *id);
        if percent(&self.random, 30) {
            targets.push((self.expendable(), ByteLen(GIB)));
        }
        let addresses = vec![format!("10.0.0.{}:7441", self.random.within(1..4))];
        Command::RegisterHost(RegisterHost { host, name: "storage".to_owned(), addresses, targets })
    }

    pub(super) fn open_session(&mut self) -> Command {
        let nonce = self.random.within(0..8);
        let host_name = "client".to_owned();
        Command::OpenSession(OpenSession { host: self.host(), host_name, nonce })
    }

    pub(super) fn of_sessions(&mut self, view: &dyn View) -> Command {
        match self.random.within(0..10) {
            0..6 => self.open_session(),
            6 => Command::KeepNames(self.any_session(view)),
            _ => Command::CloseSession(self.any_session(view)),
        }
    }

    pub(super) fn of_cluster(&mut self, view: &dyn View) -> Command {
        match self.random.within(0..32) {
            0 => self.register_host(),
            1 | 28 => Command::TargetBlank(self.target()),
            2 => {
                let mut secret = [0; 32];
                self.random.fill(&mut secret);
                Command::NewKey(NewKey { secret })
            }
            3 => Command::ReserveIds(InodeId(self.random.within(0..1 << 30))),
            4 => Command::SetFeatureLevel(FEATURE_LEVEL),
            5 => Command::SetFeatureLevel(FEATURE_LEVEL + 1),
            6 => Command::Format(Format { uid: 0, gid: 0, mode: 0o755 }),
            7..12 => self.trimmed(view),
            12 => Command::BeginRun(self.random.number()),
            13 => Command::Distrust("an older copy".to_owned()),
            14 | 15 => Command::Trust,
            16..21 => self.reclaim_orphans(view),
            21..24 => self.spilled(view),
            24..=26 => {
                let index = LogIndex(self.random.within(0..1 << 10));
                Command::NoteShown(NoteShown { target: self.target(), index })
            }
            _ => self.reclaimed(view),
        }
    }

    /// What targets have done.
    pub(super) fn of_targets(&mut self, view: &dyn View) -> Command {
        match self.random.within(0..3) {
            0 => self.trimmed(view),
            1 => self.spilled(view),
            _ => self.reclaimed(view),
        }
    }

    /// One of some targets that are given up now and then, for good.
    fn expendable(&self) -> TargetId {
        let number = 0xe0 + self.random.within(0..8);
        TargetId([u8::try_from(number).unwrap(); 8])
    }

    /// A step, whether or not it is due.
    pub(super) fn loss(&mut self, view: &dyn View) -> Command {
        let target = self.expendable();
        let inodes = (0..self.random.within(0..8)).map(|_| self.file(view).id).collect();
        Command::Loss(match self.random.within(0..10) {
            0 | 1 => Loss::Begin { target, below: InodeId(self.random.within(2..1000)) },
            2..8 => Loss::Mark { target, inodes, through: InodeId(self.random.within(2..1000)) },
            _ => Loss::End(target),
        })
    }

    /// Contents that a file has, had, or never had.
    fn reclaim_orphans(&self, view: &dyn View) -> Command {
        let inode = match percent(&self.random, 50) {
            true => self.file(view).id,
            false => InodeId(self.random.within(2..1000)),
        };
        let generation = ContentGeneration(u32::try_from(self.random.within(0..3)).unwrap());
        let contents = vec![ContentName { inode, generation }];
        Command::ReclaimOrphans(ReclaimOrphans { target: self.target(), contents })
    }

    /// A repair of something in which nothing is wrong.
    pub(super) fn repair(&mut self, view: &dyn View) -> Command {
        let (directory, name) = self.entry(view);
        Command::Repair(match self.random.within(0..3) {
            0 => Repair::Entry { directory, name },
            1 => Repair::Inode { inode: self.file(view).id },
            _ => {
                let table =
                    [b"N", b"O", b"Q", b"X"][usize::try_from(self.random.within(0..4)).unwrap()];
                let key = self.pair(view, table).map(|(key, _)| key);
                Repair::Leftover { key: key.unwrap_or_else(keys::applied) }
            }
        })
    }

    fn trimmed(&self, view: &dyn View) -> Command {
        match self.record::<TrimRecord>(view, &keys::trims()) {
            Some((inode, trim)) => {
                let late = u32::from(percent(&self.random, 20));
                let write_epoch = WriteEpoch(trim.write_epoch.0 - late);
                Command::Trimmed { inode: InodeId(inode), write_epoch }
            }
            None => Command::Trimmed { inode: self.file(view).id, write_epoch: WriteEpoch(1) },
        }
    }

    fn spilled(&self, view: &dyn View) -> Command {
        let file = self.file(view);
        let content = file.content();
        let generation =
            content.as_ref().map_or(ContentGeneration(1), |content| content.generation);
        let write_epoch = match content {
            Some(content) if percent(&self.random, 80) => content.write_epoch,
            _ => WriteEpoch(1),
        };
        Command::Spilled(Spilled { inode: file.id, generation, write_epoch })
    }

    fn reclaimed(&self, view: &dyn View) -> Command {
        let entry = self.pair(view, &keys::reclaims());
        match entry {
            Some((key, value)) => {
                let _: ReclaimRecord =
                    millrace_metadata_server::store::records::decode(&key, &value).unwrap();
                let target = TargetId(key[1..9].try_into().unwrap());
                Command::Reclaimed { target, through: keys::number_at(&key, 9).unwrap() }
            }
            None => Command::Reclaimed { target: self.target(), through: 0 },
        }
    }
}
