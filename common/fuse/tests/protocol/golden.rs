//! What kernels have sent, recorded by the example `record`. A line is an opcode and its bytes.

use std::{collections::BTreeMap, ffi::OsStr, fs};

use millrace_fuse_server::protocol::{
    attr::SetAttrFields,
    header::{Opcode, RequestHeader},
    init::InitFlags,
    lock::FileLock,
    node::RenameFlags,
    open::FSyncFlags,
    operation::{Layout, Operation, Request},
};

use crate::lines;

#[test]
fn a_kernels_requests_are_what_was_asked_of_it() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");
    let mut files = 0;
    for file in fs::read_dir(folder).unwrap() {
        files += 1;
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let mut seen = BTreeMap::new();
        for (name, bytes) in lines(&text) {
            let header = RequestHeader::of(&bytes).unwrap();
            let opcode = Opcode::from_number(header.opcode).unwrap();
            assert_eq!(format!("{opcode:?}"), name);
            let request = Request::decode(&bytes, Layout { long_setxattr: true }).unwrap();
            names_and_attributes(request.operation, &header);
            data(request.operation);
            seen.insert(name, ());
        }
        assert!(seen.len() >= 35, "{}: {seen:?}", seen.len());
    }
    assert!(files > 0);
}

/// See the example: this is what it does.
fn names_and_attributes(operation: Operation<'_>, header: &RequestHeader) {
    let is = |name: &OsStr, expected: &str| assert_eq!(name, expected);
    match operation {
        Operation::Init(init) => {
            assert_eq!(init.major, 7);
            assert!(init.offered().contains(InitFlags::INIT_EXT | InitFlags::MAX_PAGES));
        }
        Operation::Lookup { name } => is(name, "file"),
        Operation::SetAttr(set) => {
            assert!(set.valid.contains(SetAttrFields::MODE));
            assert_eq!((set.mode & 0o7777, header.node), (0o640, 2));
        }
        Operation::StatX(statx) => assert_ne!(statx.mask & 0x800, 0, "the time of birth"),
        Operation::SymLink { name, target } => {
            is(name, "new-link");
            is(target, "target/of/it");
        }
        Operation::MkNod { mknod, name } => {
            is(name, "new-fifo");
            assert_eq!(mknod.mode, 0o010_600);
        }
        Operation::MkDir { mkdir, name } => {
            is(name, "new-directory");
            assert_eq!(mkdir.mode & !0o777, 0);
        }
        Operation::Unlink { name } => is(name, "file"),
        Operation::RmDir { name } => is(name, "directory"),
        Operation::Rename { rename, name, new_name } => {
            is(name, "link");
            assert!(["new-name", "new-name-2"].map(OsStr::new).contains(&new_name));
            let expected = if new_name == "new-name" { 0 } else { RenameFlags::NO_REPLACE.0 };
            assert_eq!((rename.new_directory, rename.flags.0), (1, expected));
        }
        Operation::Link { link, name } => {
            is(name, "new-hard-link");
            assert_eq!(link.node, 2);
        }
        Operation::Create { create, name } => {
            is(name, "new-file");
            assert_eq!(create.mode & 0o170_000, 0o100_000);
        }
        Operation::TmpFile(create) => assert_eq!(create.mode, 0o100_600),
        Operation::Access(access) => assert_eq!(access.mask, 4),
        _ => {}
    }
}

fn data(operation: Operation<'_>) {
    match operation {
        Operation::Write { write, data } => {
            assert_eq!((write.handle, write.offset, data), (77, 5, &b"written"[..]));
        }
        Operation::Read(read) => assert_eq!((read.handle, read.offset, read.size), (77, 0, 100)),
        Operation::FSync(fsync) => assert_eq!(fsync.flags, FSyncFlags::DATA_ONLY),
        Operation::FSyncDir(fsync) => assert_eq!(fsync.flags, FSyncFlags::EMPTY),
        Operation::SetXAttr { set, name, value } => {
            assert_eq!((set.flags, name, value), (1, OsStr::new("user.name"), &b"value"[..]));
        }
        Operation::GetXAttr { get, name } => {
            assert!(get.size == 64 && name == "user.name" || name == "security.capability");
        }
        Operation::ListXAttr(list) => assert_eq!(list.size, 64),
        Operation::RemoveXAttr { name } => assert_eq!(name, "user.name"),
        Operation::SetLk(lock) => assert_eq!(lock.lock.kind, FileLock::WRITE),
        Operation::SetLkW(lock) => assert_eq!(lock.lock.kind, FileLock::READ),
        Operation::FAllocate(range) => {
            assert_eq!((range.mode, range.offset, range.length), (1, 10, 20));
        }
        Operation::LSeek(seek) => assert_eq!((seek.whence, seek.offset), (3, 3)),
        Operation::CopyFileRange(copy) | Operation::CopyFileRange64(copy) => {
            assert_eq!((copy.offset_in, copy.offset_out, copy.length), (1, 2, 3));
            assert_eq!((copy.node_out, copy.handle_out), (6, 77));
        }
        Operation::Interrupt { unique } => assert_eq!(unique % 2, 0),
        _ => {}
    }
}
