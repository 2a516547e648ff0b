//! From what a bucket says to what a command carries.

use std::collections::HashSet;

use millrace_object_source::{Entry, EntryKind, ObjectVersion, Page, PosixAttributes};
use millrace_protocol::capability::Origin;
use millrace_types::{FileName, InodeId, LinkId, Timestamp};

use super::{ImportEntry, ImportKind, Linked};
use crate::log::record::BODY_LEN_MAX;

/// Whom names belong to of which the bucket says nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hydration) struct Defaults {
    pub(in crate::hydration) uid: u32,
    pub(in crate::hydration) gid: u32,
}

impl Defaults {
    /// The mode of directories.
    pub(in crate::hydration) const DIRECTORY_MODE: u16 = 0o755;
}

/// A name that a bucket has, before it gets an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::hydration) struct Found {
    name: FileName,
    kind: ImportKind,
    modified: Timestamp,
    mode: u16,
    uid: u32,
    gid: u32,
    /// Of a directory: whether its page has an object of its name, too.
    is_over_object: bool,
}

/// What an entry takes in a command besides its texts, or more.
const FIXED_LEN: usize = 256;

/// Bytes of the entries of one command: half of what a record of the log holds.
const COMMAND_LEN_MAX: usize = BODY_LEN_MAX / 2;

const FILE_MODE: u16 = 0o644;
const SYMLINK_MODE: u16 = 0o777;

impl Found {
    /// A common prefix, which has no time.
    pub(super) fn directory(name: FileName, linked: &Linked) -> Self {
        let Defaults { uid, gid } = linked.defaults;
        let modified = Timestamp(0);
        Self {
            name,
            kind: ImportKind::Directory,
            modified,
            mode: Defaults::DIRECTORY_MODE,
            uid,
            gid,
            is_over_object: false,
        }
    }

    /// An object, with what its metadata say, if anybody asked.
    pub(super) fn object(
        name: FileName,
        version: &ObjectVersion,
        attributes: PosixAttributes,
        linked: &Linked,
    ) -> Self {
        let origin = origin_of(linked.link, key_of(&linked.prefix, &name), version);
        Self {
            name,
            kind: ImportKind::File(origin),
            modified: attributes.mtime.unwrap_or(version.modified),
            mode: attributes.mode.map_or(FILE_MODE, permissions),
            uid: attributes.uid.unwrap_or(linked.defaults.uid),
            gid: attributes.gid.unwrap_or(linked.defaults.gid),
            is_over_object: false,
        }
    }

    pub(super) fn name(&self) -> &FileName {
        &self.name
    }

    pub(super) fn kind(&self) -> &ImportKind {
        &self.kind
    }

    /// Whether it stands for an object of its name, too, which its page does not show beside it.
    pub(super) fn is_over_object(&self) -> bool {
        self.is_over_object
    }

    /// A directory with what the metadata of its own object say.
    pub(super) fn with_mark(self, mark: PosixAttributes) -> Self {
        Self {
            modified: mark.mtime.unwrap_or(self.modified),
            mode: mark.mode.map_or(self.mode, permissions),
            uid: mark.uid.unwrap_or(self.uid),
            gid: mark.gid.unwrap_or(self.gid),
            ..self
        }
    }

    /// Turns an object into the symbolic link that it stores.
    pub(super) fn into_symlink(self, target: Vec<u8>) -> Self {
        Self { kind: ImportKind::Symlink(target), mode: SYMLINK_MODE, ..self }
    }

    /// Bytes that it takes in a command, or more.
    fn command_len(&self) -> usize {
        let kind = match &self.kind {
            ImportKind::Directory => 0,
            ImportKind::File(origin) => origin.key.len() + origin.tag.len(),
            ImportKind::Symlink(target) => target.len(),
        };
        FIXED_LEN + self.name.as_bytes().len() + kind
    }

    /// Bytes of the object; none of what is no file.
    pub(super) fn bytes(&self) -> u64 {
        match &self.kind {
            ImportKind::File(origin) => origin.size,
            ImportKind::Directory | ImportKind::Symlink(_) => 0,
        }
    }

    pub(super) fn into_entry(self, inode: InodeId, seed: u32) -> ImportEntry {
        let Self { name, kind, modified, mode, uid, gid, is_over_object: _ } = self;
        ImportEntry { name, inode, seed, mode, uid, gid, modified, kind }
    }
}

/// Cuts names that were found into what one command takes of them: the targets of a thousand
/// symbolic links are more than that.
pub(super) fn in_commands(found: Vec<Found>) -> Vec<Vec<Found>> {
    let mut commands: Vec<Vec<Found>> = Vec::new();
    let mut room = 0;
    for found in found {
        let len = found.command_len();
        match commands.last_mut() {
            Some(last) if len <= room => last.push(found),
            _ => {
                room = COMMAND_LEN_MAX;
                commands.push(vec![found]);
            }
        }
        room = room.saturating_sub(len);
    }
    commands
}

/// The version of an object as an inode records it.
pub(in crate::hydration) fn origin_of(
    link: LinkId,
    key: String,
    version: &ObjectVersion,
) -> Origin {
    Origin {
        link,
        key,
        size: version.size,
        tag: version.tag.as_str().to_owned(),
        modified: version.modified,
    }
}

/// The key of a name in a linked directory. Names that are no UTF-8 never come from a bucket; they
/// get a key with replacement characters, under which nothing is found.
pub(in crate::hydration) fn key_of(prefix: &str, name: &FileName) -> String {
    format!("{prefix}{}", String::from_utf8_lossy(name.as_bytes()))
}

/// The names of a page. Of a directory and an object of one name it is the directory, which says
/// so. What lies on another page is settled by what is here, in the same way.
pub(in crate::hydration) fn of_page(page: &Page, linked: &Linked) -> Vec<Found> {
    let names_of = |kind: fn(&EntryKind) -> bool| -> HashSet<&FileName> {
        let entries = page.entries.iter().filter(|entry| kind(&entry.kind));
        entries.map(|entry| &entry.name).collect()
    };
    let directories = names_of(|kind| *kind == EntryKind::Directory);
    let objects = match directories.is_empty() {
        true => HashSet::new(),
        false => names_of(|kind| *kind != EntryKind::Directory),
    };
    let found = page.entries.iter().filter_map(|Entry { name, kind }| match kind {
        EntryKind::Directory => {
            let is_over_object = objects.contains(name);
            Some(Found { is_over_object, ..Found::directory(name.clone(), linked) })
        }
        EntryKind::Object(_) if directories.contains(name) => None,
        EntryKind::Object(version) => {
            Some(Found::object(name.clone(), version, PosixAttributes::default(), linked))
        }
    });
    found.collect()
}

fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & 0o7_777).expect("twelve bits")
}

#[cfg(test)]
mod tests {
    use millrace_object_source::Tag;
    use millrace_protocol::{admin::AttributeSource, cluster::Bucket};
    use millrace_types::name::SYMLINK_LEN_MAX;

    use super::*;
    use crate::command::{BATCH_MAX, Command, Envelope, ImportEntries};

    fn linked() -> Linked {
        Linked {
            directory: InodeId(2),
            link: LinkId(1),
            prefix: "data/".to_owned(),
            listed: None,
            born: Timestamp(0),
            refresh_seconds: 0,
            attributes: AttributeSource::Listing,
            bucket: Bucket {
                url: "s3://b/data".to_owned(),
                endpoint: None,
                region: None,
                credentials: None,
            },
            defaults: Defaults { uid: 7, gid: 8 },
        }
    }

    fn version() -> ObjectVersion {
        ObjectVersion { tag: Tag::new("\"t\"").unwrap(), size: 5, modified: Timestamp(9) }
    }

    fn name(text: &str) -> FileName {
        FileName::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_directory_wins_over_an_object_of_its_name() {
        let entry = |text, kind| Entry { name: name(text), kind };
        let page = Page {
            entries: vec![
                entry("a", EntryKind::Object(version())),
                entry("a", EntryKind::Directory),
                entry("b", EntryKind::Object(version())),
            ],
            ..Page::default()
        };
        let found = of_page(&page, &linked());
        assert_eq!(
            (found.len(), found[0].is_over_object(), found[1].is_over_object()),
            (2, true, false)
        );
        let entry = found[0].clone().into_entry(InodeId(5), 1);
        assert_eq!((entry.kind, entry.mode, entry.uid), (ImportKind::Directory, 0o755, 7));
        let ImportKind::File(origin) = &found[1].kind else { panic!("a file") };
        assert_eq!((origin.key.as_str(), origin.tag.as_str()), ("data/b", "\"t\""));
        assert_eq!((found[1].mode, found[1].modified), (0o644, Timestamp(9)));
    }

    #[test]
    fn attributes_of_the_metadata_win_over_the_defaults() {
        let attributes = PosixAttributes {
            mode: Some(0o100_600),
            uid: Some(1),
            gid: None,
            mtime: Some(Timestamp(3)),
        };
        let found = Found::object(name("x"), &version(), attributes, &linked());
        let entry = found.into_entry(InodeId(5), 0);
        assert_eq!((entry.mode, entry.uid, entry.gid), (0o600, 1, 8));
        assert_eq!(entry.modified, Timestamp(3));
    }

    #[test]
    fn a_page_of_long_names_is_cut_so_that_each_command_fits_into_a_record() {
        let object = |nth: usize, len: usize| {
            let name = name(&format!("{nth:0len$}"));
            Found::object(name, &version(), PosixAttributes::default(), &linked())
        };
        let ordinary: Vec<_> = (0..BATCH_MAX).map(|nth| object(nth, 64)).collect();
        assert_eq!(in_commands(ordinary.clone()), [ordinary], "one command");
        assert!(in_commands(Vec::new()).is_empty());

        let link = |nth| object(nth, 255).into_symlink(vec![b'x'; SYMLINK_LEN_MAX]);
        let links: Vec<_> = (0..BATCH_MAX).map(link).collect();
        let commands = in_commands(links.clone());
        assert_eq!(commands.concat(), links, "in their order");
        assert_eq!(commands.len(), 3);
        for found in commands {
            let entries = found.into_iter().map(|found| found.into_entry(InodeId(u64::MAX), 1));
            let import = ImportEntries { directory: InodeId(2), entries: entries.collect() };
            let command = Command::ImportEntries(import);
            let envelope = Envelope { time: Timestamp(0), operation: None, command };
            assert!(envelope.to_bytes().len() <= BODY_LEN_MAX);
        }
    }
}
