//! What a kernel has put into entries of a ring. A line is an opcode, a head and a payload.

use std::{ffi::OsStr, fs};

use millrace_fuse_server::protocol::{
    header::{Opcode, RequestHeader},
    operation::{DecodeError, Layout, Operation, Request},
    ring::{FRONT_OFFSET, HEAD_LEN, RingRequest},
};

use crate::{samples, unhex};

/// The parts of a request as they come out of an entry.
fn parts(head: &[u8; HEAD_LEN], request: &RingRequest) -> Vec<u8> {
    let front = &head[FRONT_OFFSET..][..request.front_len];
    [&head[..RequestHeader::LEN], front].concat()
}

#[test]
fn a_kernels_entries_are_what_was_asked_of_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden-ring/linux-6.18.txt");
    let text = fs::read_to_string(path).unwrap();
    let mut seen = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        let (name, head, payload) = (word(), unhex(word()), word());
        let payload = if payload == "-" { Vec::new() } else { unhex(payload) };
        let head: [u8; HEAD_LEN] = head.try_into().unwrap();
        let entry = RingRequest::of(&head).unwrap();
        assert_eq!(format!("{:?}", Opcode::from_number(entry.opcode).unwrap()), name);
        assert_eq!(entry.payload_len, payload.len());
        let first = parts(&head, &entry);
        let layout = Layout { long_setxattr: true };
        let request = Request::decode_parts([&first, &payload], layout).unwrap();
        assert_eq!(request.header.unique, entry.commit_id);
        check(&request.operation);
        // The same in one piece; and nothing of it is left out.
        let whole = [&first[..], &payload].concat();
        assert_eq!(Request::decode(&whole, layout), Ok(request));
        for cut in [[&first[..first.len() - 1], &payload], [&first, &whole]] {
            assert_eq!(Request::decode_parts(cut, layout), Err(DecodeError::Header));
        }
        seen += 1;
    }
    assert_eq!(seen, 10);
}

#[test]
fn a_request_in_two_parts_is_the_same_or_none() {
    let layout = Layout { long_setxattr: true };
    let (mut same, mut other) = (0, 0);
    for bytes in samples() {
        let whole = Request::decode(&bytes, layout).unwrap();
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            match Request::decode_parts([first, second], layout) {
                Ok(found) => {
                    assert_eq!(found, whole);
                    same += 1;
                }
                // A structure or a name lies in both, or the header does.
                Err(DecodeError::Body(..)) => other += 1,
                Err(error) => assert!(cut < RequestHeader::LEN, "{error}"),
            }
        }
    }
    assert!(same > 70 && other > 70, "{same} {other}");
}

fn check(operation: &Operation<'_>) {
    let is = |name: &OsStr, expected: &str| assert_eq!(name, expected);
    match *operation {
        Operation::Lookup { name } => is(name, "directory"),
        Operation::Create { create, name } => {
            is(name, "new-file");
            assert_eq!(create.mode, 0o100_640);
        }
        Operation::Write { write, data } => {
            assert_eq!((write.offset, write.size, data), (5, 7, &b"written"[..]));
        }
        Operation::Read(read) => assert_eq!((read.offset, read.size), (0, 100)),
        Operation::SetXAttr { set, name, value } => {
            is(name, "user.name");
            assert_eq!((set.flags, value), (1, &b"value"[..]));
        }
        Operation::SymLink { name, target } => {
            is(name, "link");
            is(target, "target/of/it");
        }
        Operation::Rename { rename, name, new_name } => {
            is(name, "link");
            is(new_name, "new-name");
            assert_eq!((rename.new_directory, rename.flags.0), (1, 0));
        }
        Operation::GetAttr(_) | Operation::StatFs => {}
        Operation::ReadDirPlus(read) => assert!(read.size >= 4096),
        _ => panic!("{operation:?} was not recorded"),
    }
}
