//! Commands on names, attributes and contents.

use std::time::Duration;

use millrace_metadata_server::{
    command::{
        Command, Commit, Create, CreateMasked, CreateUnnamed, MakeLink, NoteReads, OpenWrite,
        Opener, Publish, PublishInline, Remove, RemoveXattr, Rename, SetAttributes, SetDefaults,
        SetPin, SetTime, SetXattr,
    },
    namespace::{Inode, LayoutDefaults},
    store::{View, keys, records::OpenRecord},
};
use millrace_protocol::{
    access::LastRead,
    metadata::{INLINE_BYTES_MAX, NewNode, RenameMode, XattrMode},
};
use millrace_types::{
    ChunkSize, ContentGeneration, InodeId, Layout, MIB, PoolId, SessionId, Timestamp, WriteEpoch,
};

use super::Commands;
use crate::chance::{percent, pick};

impl Commands {
    pub(super) fn create(&mut self, view: &dyn View) -> Command {
        let node = match self.random.within(0..20) {
            0..7 => NewNode::Directory,
            7 => NewNode::Symlink(b"../elsewhere".to_vec()),
            8 => NewNode::Fifo,
            9 => NewNode::CharDevice(0x0103),
            10 => NewNode::Socket,
            _ => NewNode::Regular,
        };
        let open = percent(&self.random, 40).then(|| self.any_session(view));
        let create = Create {
            caller: self.caller(),
            parent: self.directory(view),
            name: self.name(),
            node,
            mode: *pick(&self.random, &[0o755, 0o777, 0o1777, 0o2775, 0o640]).unwrap(),
            inode: self.new_inode(),
            seed: self.seed(),
            open,
            exclusive: percent(&self.random, 50),
        };
        match self.random.within(0..10) {
            0 => Command::CreateUnnamed(CreateUnnamed {
                caller: create.caller,
                directory: create.parent,
                inode: create.inode,
                seed: create.seed,
                mode: create.mode,
                umask: 0o022,
                session: self.any_session(view),
                nameable: percent(&self.random, 70),
            }),
            1..4 => Command::CreateMasked(CreateMasked { create, umask: 0o027 }),
            4..6 => self.publish(view, create),
            _ => Command::Create(create),
        }
    }

    /// A file with its bytes; perhaps under an id that something has, or that was not reserved.
    fn publish(&mut self, view: &dyn View, create: Create) -> Command {
        let inode = match self.random.within(0..10) {
            0 => self.file(view).id,
            _ => create.inode,
        };
        let layout = Layout::new(ChunkSize::DEFAULT, 4, PoolId(0), 4, create.seed).unwrap();
        let made_at = Timestamp(i64::try_from(self.random.within(0..1 << 60)).unwrap());
        let publish = Publish {
            create: Create { node: NewNode::Regular, inode, ..create },
            layout,
            made_at,
            end: self.random.within(0..1 << 20),
            written_at: percent(&self.random, 50).then_some(made_at),
        };
        if percent(&self.random, 50) {
            return Command::Publish(Box::new(publish));
        }
        // Of its size, or perhaps not; and of a size that no inode holds, or perhaps one does.
        let len = self.random.within(0..u64::from(INLINE_BYTES_MAX) + 10);
        let end = len + u64::from(percent(&self.random, 10));
        let bytes = vec![7; usize::try_from(len).unwrap()];
        let publish = Publish { end, ..publish };
        Command::PublishInline(Box::new(PublishInline { publish, bytes }))
    }

    pub(super) fn make_link(&mut self, view: &dyn View) -> Command {
        Command::MakeLink(MakeLink {
            caller: self.caller(),
            inode: self.file(view).id,
            parent: self.directory(view),
            name: self.name(),
        })
    }

    pub(super) fn remove(&mut self, view: &dyn View) -> Command {
        let (parent, name) = self.entry(view);
        Command::Remove(Remove {
            caller: self.caller(),
            parent,
            name,
            directory: percent(&self.random, 40),
            readers: self.readers(view),
        })
    }

    pub(super) fn rename(&mut self, view: &dyn View) -> Command {
        let (source_parent, source_name) = self.entry(view);
        let (target_parent, target_name) = match percent(&self.random, 50) {
            true => self.entry(view),
            false => (self.directory(view), self.name()),
        };
        let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
        Command::Rename(Rename {
            caller: self.caller(),
            source_parent,
            source_name,
            target_parent,
            target_name,
            mode: *pick(&self.random, &modes).unwrap(),
            readers: self.readers(view),
        })
    }

    pub(super) fn set_attributes(&mut self, view: &dyn View) -> Command {
        let sizes = [0, 1, 4096, 100_000, 20 * MIB, u64::MAX];
        let random = &self.random;
        let mut set = SetAttributes {
            caller: percent(random, 90).then(|| self.caller()),
            inode: self.inode(view, |_| true).id,
            ..SetAttributes::default()
        };
        match random.within(0..6) {
            0 => set.mode = Some(0o600),
            1 => (set.uid, set.gid) = (Some(1000), Some(7)),
            2 => set.modified = Some(SetTime::At(Timestamp(-5))),
            3 => set.accessed = Some(SetTime::Now),
            _ => {
                set.inode = self.file(view).id;
                set.size = pick(random, &sizes).copied();
            }
        }
        set.make_sparse = percent(random, 10);
        Command::SetAttributes(set)
    }

    pub(super) fn open_write(&mut self, view: &dyn View) -> Command {
        let opener = Opener { session: self.any_session(view), inode: self.file(view).id };
        let caller = percent(&self.random, 80).then(|| self.caller());
        Command::OpenWrite(OpenWrite { caller, opener, truncate: percent(&self.random, 20) })
    }

    pub(super) fn close_write(&mut self, view: &dyn View) -> Command {
        if percent(&self.random, 50) {
            return Command::CloseWrite(self.opener(view));
        }
        let Opener { session, inode } = self.opener(view);
        // One of them twice, and perhaps some that this session never had open.
        let mut inodes = vec![inode; 2];
        inodes.extend((0..self.random.within(0..4)).map(|_| self.opener(view).inode));
        match percent(&self.random, 50) {
            true => Command::CloseWrites { session, inodes },
            false => Command::CloseUnwritten { session, inodes },
        }
    }

    pub(super) fn drop_reader(&mut self, view: &dyn View) -> Command {
        let opener = self.opener(view);
        match percent(&self.random, 50) {
            true => Command::DropReader(opener),
            false => Command::KeepReader(opener),
        }
    }

    pub(super) fn commit(&mut self, view: &dyn View) -> Command {
        let inode = self.file(view);
        let version = inode.file().map(|file| (file.generation, file.write_epoch));
        let (generation, write_epoch) = version
            .ok()
            .filter(|_| percent(&self.random, 90))
            .unwrap_or((ContentGeneration(1), WriteEpoch(1)));
        let written = inode.modified.plus(Duration::from_secs(self.random.within(0..90)));
        Command::Commit(Commit {
            inode: inode.id,
            generation,
            write_epoch,
            end: self.random.within(0..40 * MIB),
            written_at: percent(&self.random, 80).then_some(written),
        })
    }

    pub(super) fn set_xattr(&mut self, view: &dyn View) -> Command {
        let lengths = [0, 10, 300, 60_000, 70_000];
        let modes = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
        let name = self.xattr();
        let value = match name.starts_with(b"system.posix_acl_") {
            true => LIST.to_vec(),
            false => vec![b'v'; *pick(&self.random, &lengths).unwrap()],
        };
        Command::SetXattr(SetXattr {
            caller: self.caller(),
            inode: self.inode(view, |_| true).id,
            name,
            value,
            mode: *pick(&self.random, &modes).unwrap(),
        })
    }

    pub(super) fn remove_xattr(&mut self, view: &dyn View) -> Command {
        let inode = self.inode(view, |inode: &Inode| inode.xattr_bytes > 0).id;
        Command::RemoveXattr(RemoveXattr { caller: self.caller(), inode, name: self.xattr() })
    }

    pub(super) fn set_defaults(&mut self, view: &dyn View) -> Command {
        let sizes = [ChunkSize::MIN, ChunkSize::DEFAULT];
        let defaults = LayoutDefaults {
            chunk_size: *pick(&self.random, &sizes).unwrap(),
            width: *pick(&self.random, &[None, Some(0), Some(1), Some(3)]).unwrap(),
            pool: PoolId(u16::from(percent(&self.random, 10))),
            inline_bytes_max: 0,
        };
        let directory = self.directory(view);
        Command::SetDefaults(SetDefaults { caller: self.caller(), directory, defaults })
    }

    pub(super) fn set_pin(&mut self, view: &dyn View) -> Command {
        let inode = self.inode(view, |_| true).id;
        let pinned = percent(&self.random, 70);
        Command::SetPin(SetPin { caller: self.caller(), inode, pinned })
    }

    /// Reads a moment after the last one, or of what is not there.
    pub(super) fn note_reads(&mut self, view: &dyn View) -> Command {
        let reads = (0..self.random.within(1..20)).map(|_| {
            let inode = self.inode(view, |_| true);
            let pause = Duration::from_millis(self.random.within(0..100_000_000));
            let seen = *pick(&self.random, &[inode.accessed, LastRead::UNSEEN]).unwrap();
            let gone = percent(&self.random, 5);
            let id = if gone { InodeId(1 << 41) } else { inode.id };
            LastRead { inode: id, seen, at: inode.accessed.plus(pause) }
        });
        Command::NoteReads(NoteReads { reads: reads.collect() })
    }

    fn xattr(&self) -> Vec<u8> {
        let lists = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"];
        let names = [lists[0], lists[1], b"user.a", b"user.b", b"trusted.c", b"other"];
        pick(&self.random, &names).unwrap().to_vec()
    }

    fn readers(&self, view: &dyn View) -> Vec<SessionId> {
        match percent(&self.random, 30) {
            true => vec![self.any_session(view)],
            false => Vec::new(),
        }
    }

    /// Somebody who has something open, mostly.
    fn opener(&self, view: &dyn View) -> Opener {
        match self.record::<OpenRecord>(view, b"O") {
            Some((inode, _)) if percent(&self.random, 95) => {
                let session = self.opening_session(view, InodeId(inode));
                Opener { session, inode: InodeId(inode) }
            }
            _ => Opener { session: self.any_session(view), inode: self.file(view).id },
        }
    }

    fn opening_session(&self, view: &dyn View, inode: InodeId) -> SessionId {
        let prefix = keys::opens(inode);
        let session = self.pair(view, &prefix).and_then(|(key, _)| keys::number_at(&key, 9));
        session.map_or_else(|| self.any_session(view), SessionId)
    }
}

/// `user::rwx user:1000:rwx group::r-x mask::rwx other::---`, as an extended attribute has it.
const LIST: [u8; 44] = *b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\xe8\x03\0\0\
    \x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
