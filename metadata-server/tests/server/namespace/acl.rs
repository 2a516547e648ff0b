//! The model's access control lists, and some to choose from. A list is a list of entries: tag,
//! permissions, user or group.

use millrace_protocol::{metadata::FileKind, session::Caller};
use millrace_types::{
    ErrorKind::{InvalidArgument, NoSpace, NotPermitted, NotSupported, PermissionDenied},
    InodeId,
};

use super::model::{Answer, Model, Node};

pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

type Entry = (u16, u16, u32);

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const NOBODY: u32 = u32::MAX;

/// The bytes of the lists that are set: sound ones, one that is only a mode, an empty one, and one
/// that is not sound.
pub(super) fn some() -> Vec<Vec<u8>> {
    let single = |tag, permissions| (tag, permissions, NOBODY);
    let lists: [Vec<Entry>; 5] = [
        vec![
            single(OWNER, 7),
            (USER, 7, 1000),
            (USER, 1, 1001),
            single(OWNING_GROUP, 5),
            single(MASK, 7),
            single(OTHERS, 0),
        ],
        vec![
            single(OWNER, 7),
            single(OWNING_GROUP, 0),
            (GROUP, 7, 7),
            (GROUP, 2, 100),
            single(MASK, 5),
            single(OTHERS, 5),
        ],
        vec![single(OWNER, 6), single(OWNING_GROUP, 4), single(OTHERS, 3)],
        vec![],
        vec![single(OWNER, 7), (USER, 7, 1000), single(OWNING_GROUP, 5), single(OTHERS, 0)],
    ];
    lists.iter().map(|list| bytes(list)).collect()
}

fn bytes(list: &[Entry]) -> Vec<u8> {
    let entries = list.iter().flat_map(|(tag, permissions, id)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

fn entries(bytes: &[u8]) -> Vec<Entry> {
    let number = |bytes: &[u8]| u16::from_le_bytes(bytes.try_into().unwrap());
    let entries = bytes[4..].chunks(8).map(|entry| {
        let id = u32::from_le_bytes(entry[4..].try_into().unwrap());
        (number(&entry[..2]), number(&entry[2..4]), id)
    });
    entries.collect()
}

/// Which entries the nine permission bits show.
fn shown(list: &[Entry]) -> [u16; 3] {
    let masked = list.iter().any(|(tag, ..)| *tag == MASK);
    [OWNER, if masked { MASK } else { OWNING_GROUP }, OTHERS]
}

fn mode(list: &[Entry]) -> u16 {
    let of = |wanted: u16| list.iter().find(|(tag, ..)| *tag == wanted).unwrap().1;
    let [owner, group, others] = shown(list).map(of);
    (owner << 6) | (group << 3) | others
}

fn with_mode(mut list: Vec<Entry>, mode: u16) -> Vec<Entry> {
    for (tag, shift) in shown(&list).into_iter().zip([6, 3, 0]) {
        list.iter_mut().find(|(other, ..)| *other == tag).unwrap().1 = (mode >> shift) & 7;
    }
    list
}

/// What the access list of an inode says to somebody who is neither root nor the owner.
pub(super) fn listed(node: &Node, caller: &Caller, access: u16) -> Option<bool> {
    let list = entries(node.xattrs.get(ACCESS)?);
    let mask = list.iter().find(|(tag, ..)| *tag == MASK).map_or(7, |entry| entry.1);
    if let Some(entry) = list.iter().find(|(tag, _, id)| *tag == USER && *id == caller.uid) {
        return Some(entry.1 & mask & access == access);
    }
    let member = |(tag, _, id): &&Entry| {
        let group = if *tag == GROUP { *id } else { node.gid };
        matches!(*tag, GROUP | OWNING_GROUP)
            && (caller.gid == group || caller.groups.contains(&group))
    };
    let own: Vec<_> = list.iter().filter(member).collect();
    if own.is_empty() {
        let others = list.iter().find(|(tag, ..)| *tag == OTHERS).unwrap().1;
        return Some(others & access == access);
    }
    Some(own.iter().any(|entry| entry.1 & mask & access == access))
}

impl Model {
    /// Sets a list, or takes it away.
    pub(super) fn set_list(
        &mut self,
        (id, name): (InodeId, &[u8]),
        caller: &Caller,
        value: Option<&[u8]>,
    ) -> Answer<()> {
        let mut node = self.node(id)?.clone();
        if node.kind == FileKind::Symlink {
            return Err(NotSupported);
        }
        if caller.uid != 0 && caller.uid != node.uid {
            return Err(NotPermitted);
        }
        // Of those to choose from, the last is not sound.
        if value.is_some_and(|value| Some(value) == some().last().map(Vec::as_slice)) {
            return Err(InvalidArgument);
        }
        let list = value.map(entries).filter(|list| !list.is_empty());
        if name == DEFAULT && list.is_some() && node.kind != FileKind::Directory {
            return Err(PermissionDenied);
        }
        if let (ACCESS, Some(list)) = (name, &list) {
            node.mode = (node.mode & !0o777) | mode(list);
            let member = caller.gid == node.gid || caller.groups.contains(&node.gid);
            if caller.uid != 0 && !member {
                node.mode &= !0o2000;
            }
        }
        put(&mut node, name, list);
        let all = node.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if all > (64 << 10) + 255 {
            return Err(NoSpace);
        }
        self.nodes.insert(id, node);
        self.mark_changed(id);
        Ok(())
    }
}

impl Node {
    /// The mode was set: the list says the same.
    pub(super) fn follow_mode(&mut self) {
        if let Some(list) = self.xattrs.get(ACCESS).map(|list| entries(list)) {
            let list = with_mode(list, self.mode);
            put(self, ACCESS, Some(list));
        }
    }

    /// A new one in this directory.
    pub(super) fn inherit(&mut self, parent: &Self, umask: u16) {
        if self.kind == FileKind::Symlink {
            return;
        }
        let Some(default) = parent.xattrs.get(DEFAULT).map(|list| entries(list)) else {
            self.mode &= !umask;
            return;
        };
        let left = mode(&default) & self.mode;
        self.mode = (self.mode & !0o777) | left;
        put(self, ACCESS, Some(with_mode(default.clone(), left)));
        if self.kind == FileKind::Directory {
            put(self, DEFAULT, Some(default));
        }
    }
}

/// An access list of three entries is what the mode says already.
fn put(node: &mut Node, name: &[u8], list: Option<Vec<Entry>>) {
    match list {
        Some(list) if name != ACCESS || list.len() > 3 => {
            node.xattrs.insert(name.to_vec(), bytes(&list));
        }
        _ => drop(node.xattrs.remove(name)),
    }
}
