//! The names of the root directory, and changes of them.

use std::{collections::BTreeMap, ops::Bound};

use millrace_metadata_server::{
    command::{Command, Create, Remove, Rename},
    engine::Core,
    store::{
        borrow, keys, prefix_end,
        records::{Entry, Record as _},
    },
};
use millrace_protocol::{
    metadata::{NewNode, RenameMode},
    session::Caller,
};
use millrace_types::{FileName, InodeId};

/// What each leads to.
pub(super) type State = BTreeMap<Vec<u8>, InodeId>;

pub(super) fn of_root(core: &Core) -> State {
    let prefix = keys::entries(InodeId::ROOT);
    let end = prefix_end(&prefix);
    let found = core.view().scan(Bound::Included(&prefix), borrow(&end), usize::MAX).unwrap();
    found
        .into_iter()
        .map(|(key, value)| {
            (keys::after(&key, &prefix).to_vec(), Entry::decode(&value).unwrap().inode)
        })
        .collect()
}

pub(super) fn create(name: &[u8], inode: InodeId) -> Command {
    Command::Create(Create {
        caller: Caller::ROOT,
        parent: InodeId::ROOT,
        name: FileName::parse(name).unwrap(),
        node: NewNode::Symlink(b"somewhere".to_vec()),
        mode: 0o777,
        inode,
        seed: 0,
        open: None,
        exclusive: true,
    })
}

pub(super) fn remove(name: &[u8]) -> Command {
    Command::Remove(Remove {
        caller: Caller::ROOT,
        parent: InodeId::ROOT,
        name: FileName::parse(name).unwrap(),
        directory: false,
        readers: Vec::new(),
    })
}

pub(super) fn rename(from: &[u8], to: &[u8]) -> Command {
    Command::Rename(Rename {
        caller: Caller::ROOT,
        source_parent: InodeId::ROOT,
        source_name: FileName::parse(from).unwrap(),
        target_parent: InodeId::ROOT,
        target_name: FileName::parse(to).unwrap(),
        mode: RenameMode::Replace,
        readers: Vec::new(),
    })
}
