//! A tree as bytes, for the process that goes on with it. Both are of one build: no version, and no
//! mercy for what is not as it was written.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    sync::{Mutex, PoisonError},
};

use millrace_fuse_server::{Legacy, Wire, protocol::attr::Attr};

use super::{
    content::Content,
    memory::Memory,
    tree::{Body, Directory, Node, Tree},
};

impl Memory {
    /// What another process has left.
    pub(crate) fn inherit(legacy: &Legacy) -> io::Result<Self> {
        let tree = decode(&legacy.state).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { tree: Mutex::new(tree) })
    }

    /// What another process needs to go on.
    pub(crate) fn leave(&self) -> Legacy {
        let tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner);
        Legacy { state: encode(&tree), descriptors: Vec::new() }
    }
}

/// What is written.
#[derive(Debug, Default)]
struct Writer(Vec<u8>);

/// What is still to be read.
#[derive(Debug)]
struct Reader<'bytes>(&'bytes [u8]);

impl Writer {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_ne_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn name(&mut self, name: &OsStr) {
        self.bytes(name.as_bytes());
    }

    fn count(&mut self, count: usize) {
        self.number(count as u64);
    }
}

impl<'bytes> Reader<'bytes> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*number))
    }

    fn bytes(&mut self) -> Option<&'bytes [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn name(&mut self) -> Option<OsString> {
        Some(OsString::from_vec(self.bytes()?.to_vec()))
    }
}

/// Everything, with the references that the kernel holds.
fn encode(tree: &Tree) -> Vec<u8> {
    let mut to = Writer::default();
    to.number(tree.next);
    to.count(tree.nodes.len());
    for (number, node) in &tree.nodes {
        to.number(*number);
        to.bytes(&node.attr.encode());
        to.number(node.lookups);
        to.count(node.xattrs.len());
        for (name, value) in &node.xattrs {
            to.name(name);
            to.bytes(value);
        }
        match &node.body {
            Body::File(content) => {
                to.number(0);
                to.number(content.size);
                to.count(content.blocks.len());
                for (block, bytes) in &content.blocks {
                    to.number(*block);
                    to.bytes(bytes);
                }
            }
            Body::Directory(directory) => {
                to.number(1);
                to.number(directory.parent);
                to.number(directory.next_place);
                to.count(directory.names.len());
                for (name, (node, place)) in &directory.names {
                    to.name(name);
                    to.number(*node);
                    to.number(*place);
                }
            }
            Body::SymLink(target) => {
                to.number(2);
                to.name(target);
            }
            Body::Special => to.number(3),
        }
    }
    to.0
}

/// The same, if it is whole.
fn decode(bytes: &[u8]) -> Option<Tree> {
    let mut from = Reader(bytes);
    let next = from.number()?;
    let count = from.number()?;
    let nodes = (0..count).map(|_| Some((from.number()?, node(&mut from)?))).collect::<Option<_>>();
    Some(Tree { nodes: nodes?, next })
}

fn node(from: &mut Reader<'_>) -> Option<Node> {
    let attr = Attr::get(from.bytes()?)?;
    let lookups = from.number()?;
    let count = from.number()?;
    let xattrs: Option<_> =
        (0..count).map(|_| Some((from.name()?, from.bytes()?.to_vec()))).collect();
    let xattrs = xattrs?;
    let body = match from.number()? {
        0 => {
            let (size, count) = (from.number()?, from.number()?);
            let blocks: Option<_> =
                (0..count).map(|_| Some((from.number()?, from.bytes()?.into()))).collect();
            Body::File(Content { size, blocks: blocks? })
        }
        1 => {
            let (parent, next_place, count) = (from.number()?, from.number()?, from.number()?);
            let (mut names, mut places) = (BTreeMap::new(), BTreeMap::new());
            for _ in 0..count {
                let (name, node, place) = (from.name()?, from.number()?, from.number()?);
                places.insert(place, name.clone());
                names.insert(name, (node, place));
            }
            Body::Directory(Directory { parent, names, places, next_place })
        }
        2 => Body::SymLink(from.name()?),
        3 => Body::Special,
        _ => return None,
    };
    Some(Node { attr, body, xattrs, lookups })
}
