//! Which entries of a page have extended attributes, and that whoever keeps that hears of a change.

use millrace_protocol::{lease::MarkedPage, metadata::RemoveXattr};

use super::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The names in a directory that lead to something with extended attributes.
fn marked(world: &World, directory: InodeId) -> Vec<String> {
    let request = ListEntries {
        caller: Caller::ROOT,
        session: world.looks.host.session,
        inode: directory,
        from: ListFrom::Cookie(0),
        entries_max: 100,
    };
    let listed = world.looks.host.run(&world.server, request, ops::lease::list);
    let MarkedPage { page, with_xattrs } = listed.unwrap();
    let entries = with_xattrs.iter().map(|nth| &page.entries[usize::try_from(*nth).unwrap()]);
    entries.map(|at| at.entry.name.to_string()).collect()
}

/// A list that lets user 1000 read.
fn list() -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1_u16, 6_u16, none), (2, 4, 1000), (4, 4, none), (16, 4, none), (32, 4, none)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set(world: &mut World, inode: InodeId, name: &[u8], value: Vec<u8>) -> SetXattr {
    SetXattr {
        caller: Caller::ROOT,
        operation: world.changes.operation(),
        inode,
        name: name.to_vec(),
        value,
        mode: XattrMode::Any,
    }
}

fn remove(world: &mut World, inode: InodeId, name: &[u8]) -> RemoveXattr {
    RemoveXattr {
        caller: Caller::ROOT,
        operation: world.changes.operation(),
        inode,
        name: name.to_vec(),
    }
}

#[test]
fn a_page_says_which_entries_have_extended_attributes_and_who_keeps_it_hears_of_each_change() {
    let mut world = world();
    let (directory, file) = (world.directory, world.file);
    world.changes.make(&world.server, directory, "a", NewNode::Fifo).unwrap();
    let attributes = [Recall::Attributes(file)];
    assert!(marked(&world, directory).is_empty());
    for (name, value) in [(&b"user.a"[..], b"v".to_vec()), (ACCESS, list())] {
        world.look();
        let request = set(&mut world, file, name, value);
        assert_eq!(world.change(request, ops::xattr::set), attributes);
        assert_eq!(marked(&world, directory), ["f"]);
        world.look();
        let request = remove(&mut world, file, name);
        assert_eq!(world.change(request, ops::xattr::remove), attributes);
        assert!(marked(&world, directory).is_empty(), "it has none any more");
    }
}

#[test]
fn what_is_made_where_there_is_a_default_list_has_an_extended_attribute_from_the_beginning() {
    let mut world = world();
    let directory = world.changes.make(&world.server, InodeId::ROOT, "e", NewNode::Directory);
    let directory = directory.unwrap().attributes.inode;
    let make = |world: &mut World, text, node| {
        world.changes.make(&world.server, directory, text, node).unwrap();
    };
    make(&mut world, "before", NewNode::Regular);
    let request = set(&mut world, directory, DEFAULT, list());
    world.changes.run(&world.server, request, ops::xattr::set).unwrap();
    make(&mut world, "file", NewNode::Regular);
    make(&mut world, "link", NewNode::Symlink(b"file".to_vec()));
    make(&mut world, "sub", NewNode::Directory);
    assert_eq!(marked(&world, directory), ["file", "sub"]);
    assert_eq!(marked(&world, InodeId::ROOT), ["e"]);
}
