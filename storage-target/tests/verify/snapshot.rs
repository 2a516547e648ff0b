//! The pages of a disk, to be looked at, damaged, and put on another disk.

use std::{collections::BTreeMap, io, sync::Arc};

use bytes::Bytes;
use millrace_storage_target::{
    disk::{BufferPool, Piece, simulated::SimulatedDisk},
    format::{
        node::{Node, NodeHeader, Reference, encode_node},
        root::{ROOT_SLOTS, RootRecord},
        superblock::Superblock,
    },
    image::PageSource,
};

pub(crate) const PAGE: usize = 4096;

/// All pages that are not zero.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) pages: u64,
    stored: BTreeMap<u64, Vec<u8>>,
}

impl PageSource for Snapshot {
    fn pages(&self) -> u64 {
        self.pages
    }

    fn may_grow(&self) -> bool {
        false
    }

    fn read(&self, page: u64, bytes: &mut [u8]) -> io::Result<()> {
        for (page, bytes) in (page..).zip(bytes.chunks_mut(PAGE)) {
            if page >= self.pages {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match self.stored.get(&page) {
                Some(stored) => bytes.copy_from_slice(stored),
                None => bytes.fill(0),
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// What readers of a disk see.
    pub(crate) async fn of(disk: &SimulatedDisk, pages: u64) -> Self {
        const AT_ONCE: u64 = 256;
        let (queue, pool) = (disk.queue(), BufferPool::new(4 << 20));
        let mut stored = BTreeMap::new();
        for first in (0..pages).step_by(usize::try_from(AT_ONCE).unwrap()) {
            let len = usize::try_from(AT_ONCE.min(pages - first)).unwrap() * PAGE;
            let piece = Piece { offset: first * PAGE as u64, range: 0..len };
            let buffer = queue.read(vec![piece], pool.acquire(len).await).await.unwrap();
            for (page, bytes) in (first..).zip(buffer.as_slice()[..len].chunks(PAGE)) {
                if bytes.iter().any(|&byte| byte != 0) {
                    stored.insert(page, bytes.to_vec());
                }
            }
        }
        Self { pages, stored }
    }

    /// A disk with these pages, durable; what was cut off is zero again.
    pub(crate) async fn disk(&self, pages: u64) -> SimulatedDisk {
        let disk = SimulatedDisk::new(pages * PAGE as u64, 1);
        let (queue, pool) = (disk.queue(), BufferPool::new(4 << 20));
        for (page, bytes) in self.stored.range(..self.pages) {
            let mut buffer = pool.acquire(PAGE).await;
            buffer.as_mut_slice()[..PAGE].copy_from_slice(bytes);
            let piece = Piece { offset: page * PAGE as u64, range: 0..PAGE };
            queue.write(vec![piece], Arc::new(buffer)).await.unwrap();
        }
        queue.sync().await.unwrap();
        disk
    }

    /// The pages one after the other, as an image file has them.
    pub(crate) fn write_to(&self, file: &std::fs::File) {
        use std::os::unix::fs::FileExt as _;
        file.set_len(self.pages * PAGE as u64).unwrap();
        for (page, bytes) in self.stored.range(..self.pages) {
            file.write_all_at(bytes, page * PAGE as u64).unwrap();
        }
    }

    pub(crate) fn page(&self, page: u64) -> Vec<u8> {
        self.stored.get(&page).cloned().unwrap_or_else(|| vec![0; PAGE])
    }

    pub(crate) fn put(&mut self, page: u64, bytes: Vec<u8>) {
        assert_eq!(bytes.len(), PAGE);
        self.stored.insert(page, bytes);
    }

    pub(crate) fn flip(&mut self, page: u64, byte: usize, bit: u8) {
        let mut bytes = self.page(page);
        bytes[byte] ^= 1 << bit;
        self.put(page, bytes);
    }

    pub(crate) fn swap(&mut self, one: u64, other: u64) {
        let (first, second) = (self.page(one), self.page(other));
        self.put(one, second);
        self.put(other, first);
    }

    pub(crate) fn superblock(&self) -> Superblock {
        Superblock::newest([&self.page(0), &self.page(32)]).unwrap().superblock
    }

    /// The root that counts.
    pub(crate) fn root(&self) -> RootRecord {
        let superblock = self.superblock();
        let first = superblock.layout.roots;
        let found = (first..first + ROOT_SLOTS)
            .filter_map(|page| RootRecord::decode(&self.page(page), superblock.target).ok());
        found.max_by_key(|root| root.generation).unwrap()
    }

    /// Writes the root that counts anew, both copies.
    fn put_root(&mut self, root: &RootRecord) {
        let first = self.superblock().layout.roots + RootRecord::slot(root.generation);
        self.put(first, root.encode());
        self.put(first + 1, root.encode());
    }

    pub(crate) fn node(&self, reference: Reference, level: u8) -> Node {
        let bytes = Bytes::from(self.page(reference.page));
        Node::decode(bytes, self.superblock().target, reference, level).unwrap()
    }

    /// The nodes on the way to a key, from the top, each with its place.
    pub(crate) fn path(&self, key: &[u8]) -> Vec<(Reference, Node)> {
        let root = self.root();
        let mut reference = root.root.unwrap();
        let mut path = Vec::new();
        for level in (0..root.height).rev() {
            let node = self.node(reference, level);
            let at = node.route(key);
            path.push((reference, node.clone()));
            if level > 0 {
                reference = node.child(at);
            }
        }
        path
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &[u8]) -> Option<Bytes> {
        let (_, leaf) = self.path(key).pop().unwrap();
        leaf.find(key).ok().map(|at| leaf.value(at))
    }

    /// Changes the value of a key as if the daemon had: every checksum up to the root is right.
    pub(crate) fn forge(&mut self, key: &[u8], value: &[u8]) {
        let mut path = self.path(key);
        let (place, leaf) = path.pop().unwrap();
        let at = leaf.find(key).unwrap();
        let mut checksum = self.rewrite(place, &leaf, at, value);
        let mut child = place;
        while let Some((place, node)) = path.pop() {
            let at = (0..node.count()).find(|&at| node.child(at) == child).unwrap();
            let reference = Reference { checksum, ..child }.encode();
            checksum = self.rewrite(place, &node, at, &reference);
            child = place;
        }
        let mut root = self.root();
        root.root = Some(Reference { checksum, ..child });
        self.put_root(&root);
    }

    /// Writes a node with another value in one entry; returns its checksum.
    fn rewrite(
        &mut self,
        place: Reference,
        node: &Node,
        changed: usize,
        value: &[u8],
    ) -> millrace_types::Crc32c {
        let header = NodeHeader {
            target: self.superblock().target,
            page: place.page,
            generation: node.generation(),
            level: node.level(),
        };
        let values: Vec<Bytes> = (0..node.count()).map(|at| node.value(at)).collect();
        let entries = (0..node.count())
            .map(|at| (node.key(at), if at == changed { value } else { &values[at][..] }));
        let mut bytes = vec![0; PAGE];
        let checksum = encode_node(header, entries, &mut bytes);
        self.put(place.page, bytes);
        checksum
    }
}
