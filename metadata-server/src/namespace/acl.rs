//! POSIX access control lists: who may do what beside owner, group and others.
//!
//! An inode's lists are extended attributes of it, in the bytes that Linux uses there:
//!
//! | bytes | what                                          |
//! |------:|-----------------------------------------------|
//! | 4     | version, 2; all numbers are little-endian     |
//! | 2     | tag of the first entry: see `Tag`             |
//! | 2     | its permissions: 4 read, 2 write, 1 search    |
//! | 4     | its user or group; `0xffff_ffff` for the rest |
//!
//! and so on for each entry, in the order of the tags. The *access* list decides about the inode;
//! one that says no more than permission bits do is not kept, and those of an inode always agree
//! with its list: owner and others are the same, the group's bits are the mask. The *default* list
//! of a directory is what new entries begin with. Pure; no clock, no network.

use millrace_protocol::session::Caller;
use millrace_types::ErrorKind;

use super::{
    Inode,
    permission::{self, Access},
};
use crate::store::{StoreError, View, keys};

/// A list of entries that is sound: in order, each of the single ones once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

/// Which of an inode's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// Decides about the inode.
    Access,
    /// What new entries of a directory begin with.
    Default,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// For whom an entry is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u16)]
enum Tag {
    /// The owner.
    Owner = 0x01,
    /// A user.
    User = 0x02,
    /// The inode's group.
    OwningGroup = 0x04,
    /// A group.
    Group = 0x08,
    /// The most that users and groups with entries, and the inode's group, may do.
    Mask = 0x10,
    /// Everybody else.
    Others = 0x20,
}

impl List {
    /// The extended attribute that holds it.
    #[must_use]
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// The list that an extended attribute holds, if it holds one.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        [Self::Access, Self::Default].into_iter().find(|list| list.name() == name)
    }

    /// The list of an inode, if it has one.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn read(
        self,
        view: &(impl View + ?Sized),
        inode: &Inode,
    ) -> Result<Option<Acl>, StoreError> {
        if inode.xattr_bytes == 0 {
            return Ok(None);
        }
        let key = keys::xattr(inode.id, self.name());
        let Some(bytes) = view.get(&key)? else { return Ok(None) };
        match Acl::parse(&bytes) {
            Ok(acl) => Ok(acl),
            Err(_) => Err(StoreError::Damaged { what: "access control list", key }),
        }
    }
}

impl Acl {
    /// Reads the bytes of an extended attribute; `None` when they list nothing.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for another version, [`ErrorKind::InvalidArgument`] for what is
    /// no sound list.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, ErrorKind> {
        let (version, entries) = bytes.split_first_chunk().ok_or(ErrorKind::InvalidArgument)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(ErrorKind::NotSupported);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() || entries.len() > ENTRIES_MAX {
            return Err(ErrorKind::InvalidArgument);
        }
        let entries: Option<Vec<_>> = entries.iter().map(Entry::from_bytes).collect();
        let acl = Self(entries.ok_or(ErrorKind::InvalidArgument)?);
        if acl.0.is_empty() {
            return Ok(None);
        }
        if acl.is_sound() { Ok(Some(acl)) } else { Err(ErrorKind::InvalidArgument) }
    }

    /// As [`Self::parse`] reads it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(u16::to_le_bytes(entry.tag as u16));
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    /// The permission bits that agree with it, nine of them.
    #[must_use]
    pub fn mode(&self) -> u16 {
        let of = |tag| self.single(tag).map_or(0, |entry| entry.permissions);
        (of(Tag::Owner) << 6) | (of(self.tag_of_group_bits()) << 3) | of(Tag::Others)
    }

    /// Whether it says nothing that permission bits do not say.
    #[must_use]
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// Has it agree with permission bits that somebody sets.
    pub fn set_mode(&mut self, mode: u16) {
        let group = self.tag_of_group_bits();
        for entry in &mut self.0 {
            match entry.tag {
                Tag::Owner => entry.permissions = (mode >> 6) & 7,
                Tag::Others => entry.permissions = mode & 7,
                tag if tag == group => entry.permissions = (mode >> 3) & 7,
                _ => {}
            }
        }
    }

    /// Leaves of it what the mode that a program makes an inode with also allows, and returns the
    /// permission bits that remain.
    pub fn restrict(&mut self, mode: u16) -> u16 {
        self.set_mode(self.mode() & mode);
        self.mode()
    }

    /// Whether it lets the caller have one access to an inode of this owner and group.
    #[must_use]
    pub fn allows(&self, caller: &Caller, owner: (u32, u32), access: Access) -> bool {
        let wanted = access as u16;
        let mask = self.single(Tag::Mask).map_or(7, |mask| mask.permissions);
        let mut in_some_group = false;
        for entry in &self.0 {
            let allowed = entry.permissions & wanted != 0;
            match entry.tag {
                Tag::Owner if caller.uid == owner.0 => return allowed,
                Tag::User if caller.uid == entry.id => return allowed && mask & wanted != 0,
                Tag::OwningGroup | Tag::Group => {
                    let group = if entry.tag == Tag::Group { entry.id } else { owner.1 };
                    let member = permission::in_group(caller, group);
                    if member && allowed {
                        return mask & wanted != 0;
                    }
                    in_some_group |= member;
                }
                Tag::Others => return !in_some_group && allowed,
                Tag::Owner | Tag::User | Tag::Mask => {}
            }
        }
        false
    }

    /// In order; owner, group and others once; a mask if anybody has an entry of its own.
    fn is_sound(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(Tag::User) + count(Tag::Group) > 0;
        self.0.is_sorted_by_key(|entry| entry.tag)
            && [Tag::Owner, Tag::OwningGroup, Tag::Others].iter().all(|&tag| count(tag) == 1)
            && (count(Tag::Mask) == 1 || (count(Tag::Mask) == 0 && !named))
    }

    fn single(&self, tag: Tag) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.tag == tag)
    }

    /// Which entry the group's permission bits show.
    fn tag_of_group_bits(&self) -> Tag {
        if self.single(Tag::Mask).is_some() { Tag::Mask } else { Tag::OwningGroup }
    }
}

impl Entry {
    fn from_bytes(bytes: &[u8; ENTRY_LEN]) -> Option<Self> {
        let [tag, tag_high, permissions, permissions_high, id @ ..] = *bytes;
        let tag = match u16::from_le_bytes([tag, tag_high]) {
            0x01 => Tag::Owner,
            0x02 => Tag::User,
            0x04 => Tag::OwningGroup,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Others,
            _ => return None,
        };
        let permissions = u16::from_le_bytes([permissions, permissions_high]);
        let id = u32::from_le_bytes(id);
        let named = matches!(tag, Tag::User | Tag::Group);
        if permissions > 7 || (named && id == NOBODY) {
            return None;
        }
        // What others send there means nothing.
        Some(Self { tag, permissions, id: if named { id } else { NOBODY } })
    }
}

const VERSION: u32 = 2;
const ENTRY_LEN: usize = 8;
const NOBODY: u32 = u32::MAX;

/// What fits a page of 4 KiB, as Linux lets a FUSE file system have it.
const ENTRIES_MAX: usize = (4096 - 4) / ENTRY_LEN;

#[cfg(test)]
mod tests;
