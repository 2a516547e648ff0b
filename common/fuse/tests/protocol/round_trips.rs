//! What is encoded is decoded to the same.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use millrace_fuse_server::{
    Wire,
    protocol::{
        attr, data,
        directory::{DirectoryEntry, DirectoryPage, entries},
        header, init, ioctl, lock, node, notification, open,
        operation::{Layout, Operation, Request},
        statfs, statx, xattr,
    },
};
use proptest::{collection::vec, prelude::*};

use crate::request;

/// Reads a structure, writes it, reads it again: fields survive, padding becomes zero.
fn structure<T: Wire + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let first = T::get(bytes).expect("there are enough bytes");
    let mut written = vec![0xAA; T::LEN];
    first.put(&mut written);
    let again = T::get(&written).expect("whole");
    assert_eq!(first, again);
    let mut twice = vec![0x55; T::LEN];
    again.put(&mut twice);
    assert_eq!(written, twice);
    assert!(T::get(&bytes[..T::LEN - 1]).is_none());
}

macro_rules! structures {
    ($bytes:ident: $($type:ty),* $(,)?) => {
        $(structure::<$type>($bytes);)*
    };
}

fn all(bytes: &[u8]) {
    structures!(bytes:
        header::RequestHeader, header::ReplyHeader, init::Init, init::InitReply, attr::Attr,
        attr::GetAttr, attr::AttrReply, attr::SetAttr, attr::Access, attr::EntryReply,
        statx::StatXTime, statx::StatX, statx::StatXAttr, statx::StatXReply, node::MkNod,
        node::MkDir, node::Link, node::Rename, open::Open, open::Create, open::OpenReply,
        open::Release, open::Flush, open::FSync, data::Read, data::Write, data::WriteReply,
        data::FAllocate, data::LSeek, data::LSeekReply, data::CopyFileRange,
        data::CopyFileRangeReply, data::BMap, data::BMapReply, statfs::StatFsReply,
        lock::FileLock, lock::Lock, lock::LockReply, xattr::SetXAttr, xattr::GetXAttr,
        xattr::XAttrSizeReply, ioctl::IoCtl, ioctl::IoCtlReply, ioctl::Poll, ioctl::PollReply,
        notification::PollWakeup, notification::InvalInode, notification::InvalEntry,
        notification::DeletedEntry, notification::Store, notification::Retrieve,
        notification::Retrieved, notification::Prune, DirectoryEntry,
    );
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>().prop_filter("none", |byte| ![0, b'/', b'.'].contains(byte)), 1..40)
}

fn decoded(bytes: &[u8]) -> Operation<'_> {
    Request::decode(bytes, Layout { long_setxattr: true }).expect("it is right").operation
}

proptest! {
    #[test]
    fn structures_of_any_content(bytes in vec(any::<u8>(), 300)) {
        all(&bytes);
    }

    #[test]
    fn names_and_data_come_out_as_they_went_in(
        name in name(),
        other in name(),
        data in vec(any::<u8>(), 0..100),
        offset in any::<u64>(),
    ) {
        let [name_z, other_z] = [&name, &other].map(|name| [&name[..], b"\0"].concat());
        let (name, other) = (OsStr::from_bytes(&name), OsStr::from_bytes(&other));
        let size = u32::try_from(data.len()).unwrap();

        let bytes = request(1, 0, &name_z);
        prop_assert_eq!(decoded(&bytes), Operation::Lookup { name });

        let rename = node::Rename { new_directory: offset, flags: node::RenameFlags::EXCHANGE };
        let bytes = request(45, 0, &[&rename.encode()[..], &name_z, &other_z].concat());
        prop_assert_eq!(decoded(&bytes), Operation::Rename { rename, name, new_name: other });

        let bytes = request(6, 0, &[&name_z[..], &other_z].concat());
        prop_assert_eq!(decoded(&bytes), Operation::SymLink { name, target: other });

        let write = data::Write { offset, size, ..data::Write::default() };
        let bytes = request(16, 0, &[&write.encode()[..], &data].concat());
        prop_assert_eq!(decoded(&bytes), Operation::Write { write, data: &data });

        let set = xattr::SetXAttr { size, flags: 1, ..xattr::SetXAttr::default() };
        let bytes = request(21, 0, &[&set.encode()[..], &name_z, &data].concat());
        prop_assert_eq!(decoded(&bytes), Operation::SetXAttr { set, name, value: &data });
        let short = [&set.encode()[..xattr::SetXAttr::SHORT_LEN], &name_z, &data].concat();
        let bytes = request(21, 0, &short);
        let request = Request::decode(&bytes, Layout { long_setxattr: false }).unwrap();
        prop_assert_eq!(request.operation, Operation::SetXAttr { set, name, value: &data });
    }

    #[test]
    fn directories_come_out_as_they_went_in(names in vec(name(), 0..20), limit in 0..2000_u32) {
        let mut page = DirectoryPage::new(limit);
        let mut fitting = 0;
        for (offset, name) in (1..).zip(&names) {
            let entry = DirectoryEntry { ino: offset, offset, ..DirectoryEntry::default() };
            if !page.push(entry, OsStr::from_bytes(name)) {
                break;
            }
            fitting += 1;
        }
        prop_assert!(page.as_bytes().len() <= usize::try_from(limit).unwrap());
        let read: Vec<_> = entries(page.as_bytes()).map(|(_, name)| name.as_bytes()).collect();
        prop_assert_eq!(read, names[..fitting].iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
}
