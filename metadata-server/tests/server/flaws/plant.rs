//! Damages, as changes of the store's own records.

use millrace_metadata_server::{
    namespace::{Body, Inode, ObjectState, ParentLink},
    store::{
        Batch, View, keys,
        records::{self, Entry, FileSystem, OpenRecord, ReclaimRecord, Record as _},
    },
};
use millrace_protocol::{fsck::FlawKind, metadata::FileKind};
use millrace_types::{ContentGeneration, FileName, InodeId, SessionId, TargetId};

use super::{Damage, Planted};

pub(super) fn inode(view: &dyn View, id: InodeId) -> Inode {
    records::read(view, &keys::inode(id)).unwrap().unwrap()
}

pub(super) fn entry(view: &dyn View, directory: InodeId, name: &[u8]) -> Entry {
    records::read(view, &keys::entry(directory, name)).unwrap().unwrap()
}

pub(super) fn with_inode(view: &dyn View, id: InodeId, change: impl FnOnce(&mut Inode)) -> Batch {
    let mut changed = inode(view, id);
    change(&mut changed);
    let mut batch = Batch::default();
    batch.put(keys::inode(id), changed.encode());
    batch
}

pub(super) fn with_entry(
    view: &dyn View,
    place: (InodeId, &[u8]),
    change: impl FnOnce(&mut Entry),
) -> Batch {
    let mut changed = entry(view, place.0, place.1);
    change(&mut changed);
    let mut batch = Batch::default();
    batch.put(keys::entry(place.0, place.1), changed.encode());
    batch
}

/// The name is gone without a trace, and so is its count.
pub(super) fn without_entry(view: &dyn View, directory: InodeId, name: &[u8]) -> Batch {
    let gone = entry(view, directory, name);
    let mut batch = with_inode(view, directory, |parent| {
        parent.size -= 1;
        parent.links -= u32::from(gone.kind == FileKind::Directory);
    });
    batch.delete(keys::entry(directory, name));
    batch.delete(keys::cookie(directory, gone.cookie));
    batch
}

/// One more name for an inode, which knows nothing of it.
pub(super) fn second_entry(view: &dyn View, directory: InodeId, name: &[u8], of: &Entry) -> Batch {
    let mut cookie = 0;
    let mut batch = with_inode(view, directory, |parent| {
        parent.size += 1;
        parent.links += u32::from(of.kind == FileKind::Directory);
        let body = parent.directory_mut().unwrap();
        cookie = body.next_cookie;
        body.next_cookie += 1;
    });
    batch.put(keys::entry(directory, name), Entry { cookie, ..*of }.encode());
    batch.put(keys::cookie(directory, cookie), name.to_vec());
    batch
}

fn one(key: Vec<u8>, value: Option<Vec<u8>>) -> Batch {
    let mut batch = Batch::default();
    match value {
        Some(value) => batch.put(key, value),
        None => batch.delete(key),
    }
    batch
}

fn link(directory: InodeId, name: &[u8]) -> ParentLink {
    ParentLink { directory, name: FileName::parse(name).unwrap() }
}

/// An inode that nobody has.
const NOBODY: InodeId = InodeId(999_999);

/// One that a path leads to, or none.
fn damage(
    kind: FlawKind,
    path: impl Into<Option<&'static str>>,
    plant: fn(&Planted, &dyn View) -> Batch,
) -> Damage {
    Damage { kind, path: path.into(), plant }
}

/// Every kind of damage that there is a repair for.
pub(super) fn all() -> Vec<Damage> {
    [of_names(), of_inodes(), of_attributes(), of_counts(), of_leftovers()]
        .into_iter()
        .flatten()
        .collect()
}

fn of_names() -> Vec<Damage> {
    vec![
        damage(FlawKind::DeadName, "/a/other", |planted, _| {
            one(keys::inode(planted.id("other")), None)
        }),
        damage(FlawKind::DeadName, "/a/dead", |planted, view| {
            let of = Entry { inode: NOBODY, kind: FileKind::Regular, cookie: 0 };
            second_entry(view, planted.id("a"), b"dead", &of)
        }),
        Damage {
            kind: FlawKind::LostDirectory,
            path: None,
            plant: |_, _| {
                let of = Entry { inode: NOBODY, kind: FileKind::Regular, cookie: 1 };
                one(keys::entry(InodeId(999_998), b"name"), Some(of.encode()))
            },
        },
        damage(FlawKind::LostDirectory, "/a/other/under", |planted, _| {
            let of = Entry { inode: NOBODY, kind: FileKind::Regular, cookie: 1 };
            one(keys::entry(planted.id("other"), b"under"), Some(of.encode()))
        }),
        damage(FlawKind::WrongKind, "/a/other", |planted, view| {
            with_entry(view, (planted.id("a"), b"other"), |entry| entry.kind = FileKind::Fifo)
        }),
        damage(FlawKind::WrongParent, "/c/again", |planted, view| {
            let of = entry(view, planted.id("a"), b"other");
            second_entry(view, planted.id("c"), b"again", &of)
        }),
        damage(FlawKind::SecondPlace, "/c/again", |planted, view| {
            let of = entry(view, planted.id("a"), b"b");
            second_entry(view, planted.id("c"), b"again", &of)
        }),
        damage(FlawKind::SecondPlace, "/c/root", |planted, view| {
            let of = Entry { inode: InodeId::ROOT, kind: FileKind::Directory, cookie: 0 };
            second_entry(view, planted.id("c"), b"root", &of)
        }),
        damage(FlawKind::WrongPosition, "/a/other", |planted, view| {
            let cookie = entry(view, planted.id("a"), b"other").cookie;
            one(keys::cookie(planted.id("a"), cookie), None)
        }),
        damage(FlawKind::WrongPosition, "/a/other", |planted, view| {
            with_entry(view, (planted.id("a"), b"other"), |entry| entry.cookie = 0)
        }),
        // The first of those whose positions are given, as the directory believes, to nobody.
        damage(FlawKind::WrongPosition, "/a/link", |planted, view| {
            with_inode(view, planted.id("a"), |parent| {
                parent.directory_mut().unwrap().next_cookie = 2;
            })
        }),
    ]
}

fn of_inodes() -> Vec<Damage> {
    vec![
        damage(FlawKind::WrongLinks, "/a/b/file", |planted, view| {
            with_inode(view, planted.id("file"), |inode| inode.links = 1)
        }),
        damage(FlawKind::WrongLinks, "/a/other", |planted, view| {
            with_inode(view, planted.id("other"), |inode| inode.links = 0)
        }),
        damage(FlawKind::WrongParent, "/a/b/file", |planted, view| {
            without_entry(view, planted.id("b"), b"file")
        }),
        damage(FlawKind::WrongParent, "/a/b/file", |planted, view| {
            let wrong = link(planted.id("c"), b"nowhere");
            with_inode(view, planted.id("file"), |inode| inode.parent = Some(wrong))
        }),
        damage(FlawKind::WrongParent, "/a/other", |planted, view| {
            let wrong = link(planted.id("c"), b"nowhere");
            with_inode(view, planted.id("other"), |inode| inode.parent = Some(wrong))
        }),
        damage(FlawKind::WrongParent, "/a/b", |planted, view| {
            let wrong = link(planted.id("c"), b"nowhere");
            with_inode(view, planted.id("b"), |inode| inode.parent = Some(wrong))
        }),
        damage(FlawKind::WrongParent, "/", |planted, view| {
            let wrong = link(planted.id("c"), b"nowhere");
            with_inode(view, InodeId::ROOT, |inode| inode.parent = Some(wrong))
        }),
        damage(FlawKind::Nameless, "/a/other", |planted, view| {
            without_entry(view, planted.id("a"), b"other")
        }),
        Damage {
            kind: FlawKind::Nameless,
            path: None,
            plant: |planted, view| {
                let other = planted.id("other");
                let mut batch = without_entry(view, planted.id("a"), b"other");
                let mut nobodys = inode(view, other);
                (nobodys.parent, nobodys.links) = (None, 0);
                batch.put(keys::inode(other), nobodys.encode());
                batch
            },
        },
        Damage {
            kind: FlawKind::Cycle,
            path: None,
            plant: |planted, view| {
                // `/a` moves to where only `/a/b` leads.
                let (a, b) = (planted.id("a"), planted.id("b"));
                let of = entry(view, InodeId::ROOT, b"a");
                let mut batch = without_entry(view, InodeId::ROOT, b"a");
                for (key, value) in second_entry(view, b, b"round", &of).iter() {
                    batch.put(key.to_vec(), value.unwrap().to_vec());
                }
                let mut top = inode(view, a);
                top.parent = Some(link(b, b"round"));
                batch.put(keys::inode(a), top.encode());
                batch
            },
        },
    ]
}

fn of_attributes() -> Vec<Damage> {
    vec![
        damage(FlawKind::WrongAttributes, "/a/b/file", |planted, view| {
            with_inode(view, planted.id("file"), |inode| inode.xattr_bytes = 0)
        }),
        damage(FlawKind::WrongAccount, "/a/other", |planted, view| {
            with_inode(view, planted.id("other"), |inode| inode.accounting = 9)
        }),
        damage(FlawKind::WrongSize, "/a/symlink", |planted, view| {
            with_inode(view, planted.id("symlink"), |inode| inode.size = 3)
        }),
        damage(FlawKind::WrongConflict, "/a/other", |planted, view| {
            with_inode(view, planted.id("other"), |inode| {
                if let Body::File(file) = &mut inode.body {
                    file.state = ObjectState::Conflict;
                }
            })
        }),
    ]
}

fn of_counts() -> Vec<Damage> {
    vec![
        damage(FlawKind::WrongEntries, Some("/a"), |planted, view| {
            with_inode(view, planted.id("a"), |inode| inode.size = 17)
        }),
        damage(FlawKind::WrongEntries, Some("/c"), |planted, view| {
            with_inode(view, planted.id("c"), |inode| inode.links = 5)
        }),
        damage(FlawKind::WrongEntries, Some("/"), |_, view| {
            with_inode(view, InodeId::ROOT, |inode| inode.links = 2)
        }),
        damage(FlawKind::WrongCount, None, |_, view| {
            let key = keys::file_system();
            let said: FileSystem = records::read(view, &key).unwrap().unwrap();
            one(key, Some(FileSystem { inodes: 77, ..said }.encode()))
        }),
        damage(FlawKind::WrongCount, None, |_, view| {
            let key = keys::file_system();
            let said: FileSystem = records::read(view, &key).unwrap().unwrap();
            one(key, Some(FileSystem { reclaim_entries: 5, ..said }.encode()))
        }),
    ]
}

fn of_leftovers() -> Vec<Damage> {
    let mut all = of_nobody();
    all.extend(of_a_file());
    all
}

/// Records of an inode that does not exist.
fn of_nobody() -> Vec<Damage> {
    fn leftover(plant: fn(&Planted, &dyn View) -> Batch) -> Damage {
        damage(FlawKind::Leftover, None, plant)
    }
    vec![
        leftover(|_, _| one(keys::xattr(NOBODY, b"user.x"), Some(b"1".to_vec()))),
        leftover(|_, _| one(keys::trim(NOBODY), Some(Vec::new()))),
        leftover(|_, _| one(keys::conflict(NOBODY), Some(Vec::new()))),
        leftover(|_, _| one(keys::nameable(NOBODY), Some(Vec::new()))),
        leftover(|_, _| one(keys::contents(NOBODY), Some(b"1".to_vec()))),
        leftover(|_, _| one(keys::whiteout(NOBODY, b"x"), Some(Vec::new()))),
        leftover(|_, _| one(keys::open(NOBODY, SessionId(1)), Some(written()))),
        leftover(|_, _| one(keys::outcome(SessionId(4711), 1), Some(Vec::new()))),
        leftover(|_, _| {
            let record = ReclaimRecord { inode: NOBODY, generation: ContentGeneration(1) };
            one(keys::reclaim(TargetId([9; 8]), 1), Some(record.encode()))
        }),
    ]
}

/// Records of a file that are not right there.
fn of_a_file() -> Vec<Damage> {
    fn leftover(plant: fn(&Planted, &dyn View) -> Batch) -> Damage {
        damage(FlawKind::Leftover, "/a/other", plant)
    }
    vec![
        damage(FlawKind::Leftover, "/", |_, _| one(keys::export(InodeId::ROOT), Some(Vec::new()))),
        leftover(|planted, _| {
            one(keys::open(planted.id("other"), SessionId(4711)), Some(written()))
        }),
        leftover(|planted, _| one(keys::open(planted.id("other"), SessionId(1)), Some(written()))),
        leftover(|planted, _| one(keys::contents(planted.id("other")), Some(b"1".to_vec()))),
        leftover(|planted, _| {
            one(keys::opened(SessionId(1), planted.id("other")), Some(Vec::new()))
        }),
        leftover(|planted, _| one(keys::conflict(planted.id("other")), Some(Vec::new()))),
        leftover(|planted, _| one(keys::nameable(planted.id("other")), Some(Vec::new()))),
        leftover(|planted, _| {
            let key = keys::name(planted.id("other"), planted.id("c"), b"nowhere");
            one(key, Some(Vec::new()))
        }),
        damage(FlawKind::Leftover, "/a", |planted, _| {
            one(keys::cookie(planted.id("a"), 77), Some(b"nobody".to_vec()))
        }),
        damage(FlawKind::LiveReclaim, "/a/other", |planted, _| {
            let inode = planted.id("other");
            let record = ReclaimRecord { inode, generation: ContentGeneration(1) };
            one(keys::reclaim(TargetId([1; 8]), 1), Some(record.encode()))
        }),
    ]
}

fn written() -> Vec<u8> {
    OpenRecord { writes: 1, reads: false }.encode()
}
