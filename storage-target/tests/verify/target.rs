//! A target with content: random operations on a volume, and what it must then serve.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use millrace_protocol::target::ContentName;
use millrace_runtime::Random;
use millrace_storage_target::{
    disk::{BufferPool, simulated::SimulatedDisk},
    format::{batch::BootId, superblock::Layout},
    verify::{
        Options as VerifyOptions, Summary, Unreadable,
        report::{Observer, Remark, Severity},
        verify,
    },
    volume::{Authority, Blank, Fill, OpenError, Options, Volume, WriteRequest, ZeroRequest},
};
use millrace_types::{
    BlockState, ChunkIndex, ChunkKey, ClusterId, ContentGeneration, CopyIndex, Crc32c, GroupEpoch,
    InodeId, SessionId, TargetId, WriteEpoch, WriteNumber,
};

use super::snapshot::{PAGE, Snapshot};

pub(crate) const BLOCK: usize = 64 * 1024;
const CHUNK: usize = 1 << 20;
const BLOCKS: u16 = 16;

/// Two regions behind a small ring, so that checkpoints are frequent.
pub(crate) const LAYOUT: Layout =
    Layout { capacity: 512 + 2 * 8192, roots: 16, journal: 256, journal_pages: 256, regions: 512 };

pub(crate) const BOOT: BootId = BootId([1; 16]);

/// What a block may hold: what it had when it was last durable, and since.
type Versions = Vec<Option<Vec<u8>>>;

/// A volume, and what it must serve.
pub(crate) struct Target {
    pub(crate) disk: SimulatedDisk,
    pub(crate) volume: Option<Volume>,
    pub(crate) boot: BootId,
    random: Random,
    /// By inode and block; one chunk a file.
    pub(crate) blocks: BTreeMap<(u64, u16), Versions>,
    /// Blocks that the bucket has: when they are bad they are dropped, to be fetched again.
    filled: BTreeSet<(u64, u16)>,
    /// Raised by each trim of an inode.
    epochs: BTreeMap<u64, u32>,
}

pub(crate) fn key(inode: u64) -> ChunkKey {
    ChunkKey {
        inode: InodeId(inode),
        generation: ContentGeneration(1),
        index: ChunkIndex(0),
        copy: CopyIndex(0),
    }
}

impl Target {
    pub(crate) async fn new(seed: u64) -> Self {
        let random = Random::seeded(seed);
        let disk = SimulatedDisk::new(LAYOUT.capacity * PAGE as u64, seed);
        let (blocks, filled, epochs) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let mut target = Self { disk, volume: None, boot: BOOT, random, blocks, filled, epochs };
        target.open().await.unwrap();
        target
    }

    /// A target that finds these pages, and must serve what the other one had to.
    pub(crate) async fn on(&self, snapshot: &Snapshot) -> Self {
        Self {
            disk: snapshot.disk(LAYOUT.capacity).await,
            volume: None,
            boot: self.boot,
            random: Random::seeded(0),
            blocks: self.blocks.clone(),
            filled: self.filled.clone(),
            epochs: self.epochs.clone(),
        }
    }

    pub(crate) async fn open(&mut self) -> Result<(), OpenError> {
        let options = Options {
            cluster: ClusterId([9; 16]),
            blank: Some(Blank { target: TargetId([7; 8]), layout: LAYOUT }),
            disk: self.disk.queue(),
            pool: BufferPool::new(16 << 20),
            cache_bytes: 1 << 20,
            // Long, so that only what the test asks for happens.
            sync_interval: Duration::from_secs(3600),
            boot: self.boot,
            growth: None,
        };
        self.volume = Some(Volume::open(&options).await?);
        Ok(())
    }

    pub(crate) fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    pub(crate) async fn close(&mut self) {
        self.volume().close().await.unwrap();
        self.volume = None;
        self.is_durable();
    }

    pub(crate) fn kill(&mut self) {
        self.volume = None;
    }

    /// Loses what was not durable; the machine comes back under another boot.
    pub(crate) fn cut(&mut self) {
        self.volume = None;
        self.disk.restart();
        self.boot.0[0] += 1;
    }

    pub(crate) async fn sync(&mut self) {
        self.volume().sync().await.unwrap();
        self.is_durable();
    }

    fn is_durable(&mut self) {
        for versions in self.blocks.values_mut() {
            versions.drain(..versions.len() - 1);
        }
    }

    pub(crate) async fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.disk, LAYOUT.capacity).await
    }

    fn below(&self, end: usize) -> usize {
        usize::try_from(self.random.within(0..end as u64)).unwrap()
    }

    /// Changes anything, mostly small files.
    pub(crate) async fn change(&mut self) {
        let inode = 1 + self.below(400) as u64;
        match self.below(20) {
            0..=11 => {
                let len = [1 + self.below(3 * PAGE), 1 + self.below(CHUNK / 4)][self.below(6) / 5];
                let start = if self.below(2) == 0 { 0 } else { self.below(CHUNK - len) };
                self.write(inode, start..start + len).await;
            }
            12 | 13 => self.zero(inode).await,
            14..=16 => self.fill(inode).await,
            17 => self.release(inode).await,
            18 => self.truncate(inode).await,
            _ => self.sync().await,
        }
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        bytes
    }

    fn epoch(&self, inode: u64) -> WriteEpoch {
        WriteEpoch(self.epochs.get(&inode).copied().unwrap_or_default())
    }

    /// The newest bytes of a block.
    fn newest(&self, inode: u64, block: u16) -> Option<Vec<u8>> {
        self.blocks.get(&(inode, block)).and_then(|versions| versions.last().cloned().flatten())
    }

    fn put(&mut self, inode: u64, block: u16, bytes: Option<Vec<u8>>) {
        self.blocks.entry((inode, block)).or_insert_with(|| vec![None]).push(bytes);
    }

    pub(crate) async fn write(&mut self, inode: u64, range: Range<usize>) {
        let bytes = self.bytes(range.len());
        let request = WriteRequest {
            key: key(inode),
            offset: u32::try_from(range.start).unwrap(),
            checksum: Crc32c::of(&bytes),
            body: vec![Bytes::from(bytes.clone())],
            group_epoch: GroupEpoch(1),
            write_epoch: self.epoch(inode),
            chunk_size: u32::try_from(CHUNK).unwrap(),
            backed: 0,
            session: SessionId(0),
            number: WriteNumber(0),
            authority: Authority::default(),
        };
        self.volume().write(request).await.unwrap();
        for block in blocks_of(&range) {
            let mut new = self.newest(inode, block).unwrap_or_else(|| vec![0; BLOCK]);
            let start = usize::from(block) * BLOCK;
            let (from, to) = (range.start.max(start), range.end.min(start + BLOCK));
            new[from - start..to - start]
                .copy_from_slice(&bytes[from - range.start..to - range.start]);
            self.put(inode, block, Some(new));
        }
    }

    async fn zero(&mut self, inode: u64) {
        let start = self.below(CHUNK / 2);
        let range = start..start + 1 + self.below(CHUNK / 2 - 1);
        let request = ZeroRequest {
            key: key(inode),
            range: u32::try_from(range.start).unwrap()..u32::try_from(range.end).unwrap(),
            group_epoch: GroupEpoch(1),
            write_epoch: self.epoch(inode),
            chunk_size: u32::try_from(CHUNK).unwrap(),
            backed: 0,
            session: SessionId(0),
            number: WriteNumber(0),
            authority: Authority::default(),
        };
        self.volume().zero(request).await.unwrap();
        for block in blocks_of(&range) {
            let mut new = self.newest(inode, block).unwrap_or_else(|| vec![0; BLOCK]);
            let start = usize::from(block) * BLOCK;
            let (from, to) = (range.start.max(start), range.end.min(start + BLOCK));
            new[from - start..to - start].fill(0);
            self.put(inode, block, Some(new));
        }
    }

    async fn fill(&mut self, inode: u64) {
        let block = u16::try_from(self.below(usize::from(BLOCKS))).unwrap();
        self.fill_block(inode, block).await;
    }

    /// A block of the bucket, if nothing is there yet.
    pub(crate) async fn fill_block(&mut self, inode: u64, block: u16) {
        if self.newest(inode, block).is_some() {
            return;
        }
        let bytes = self.bytes(BLOCK);
        let mut buffer = self.volume().pool().acquire(BLOCK).await;
        buffer.as_mut_slice()[..BLOCK].copy_from_slice(&bytes);
        let checksums: Vec<_> = buffer.as_slice()[..BLOCK].chunks(PAGE).map(Crc32c::of).collect();
        let fill = Fill {
            key: key(inode),
            first_block: block,
            buffer: Arc::new(buffer),
            len: u32::try_from(BLOCK).unwrap(),
            checksums: checksums.into(),
            write_epoch: self.epoch(inode),
            chunk_size: u32::try_from(CHUNK).unwrap(),
            backed: u32::try_from(CHUNK).unwrap(),
            mark: self.volume().drop_mark(&key(inode)),
            gathers: false,
        };
        self.volume().fill(fill).await.unwrap();
        self.put(inode, block, Some(bytes));
        self.filled.insert((inode, block));
    }

    /// Clean blocks are absent again; which ones are clean the volume says.
    async fn release(&mut self, inode: u64) {
        let states = self.volume().snapshot(key(inode), 0..BLOCKS).await.unwrap();
        self.volume().release(key(inode)).await.unwrap();
        for block in (0..BLOCKS).filter(|&block| states.state(block) == BlockState::Clean) {
            self.put(inode, block, None);
        }
    }

    async fn truncate(&mut self, inode: u64) {
        let content = ContentName { inode: InodeId(inode), generation: ContentGeneration(1) };
        *self.epochs.entry(inode).or_default() += 1;
        self.volume().trim(content, CHUNK as u64, 0, self.epoch(inode)).await.unwrap();
        for block in 0..BLOCKS {
            if self.newest(inode, block).is_some() {
                self.put(inode, block, None);
            }
        }
    }

    /// Everything that is served is what the block may be; what is refused is refused. What was
    /// served is what the block is from now on. Returns how many blocks are refused.
    pub(crate) async fn assert_serves_nothing_wrong(&mut self) -> usize {
        let mut blocks = std::mem::take(&mut self.blocks);
        let mut refused = 0;
        for (&(inode, block), versions) in &mut blocks {
            let Some(found) = self.look(inode, block).await else {
                refused += 1;
                continue;
            };
            if found.is_none() && self.filled.contains(&(inode, block)) {
                *versions = vec![None];
                continue;
            }
            // What was trimmed is absent or zero: both read as nothing.
            let nothing = || vec![0; BLOCK];
            let found = found.unwrap_or_else(nothing);
            let mut known = versions.iter().map(|version| version.clone().unwrap_or_else(nothing));
            assert!(known.any(|known| known == found), "inode {inode} block {block}");
            *versions = vec![Some(found)];
        }
        self.blocks = blocks;
        refused
    }

    /// The bytes of a block, or that it is absent; `None` when it is refused.
    async fn look(&self, inode: u64, block: u16) -> Option<Option<Vec<u8>>> {
        let snapshot = self.volume().snapshot(key(inode), block..block + 1).await.ok()?;
        Some(match snapshot.state(block) {
            BlockState::Absent => None,
            BlockState::Zero => Some(vec![0; BLOCK]),
            BlockState::Clean | BlockState::Written => {
                let loaded = self.volume().load(&snapshot, u32::from(block) * 16, 16).await;
                Some(loaded.ok()?.bytes.to_vec())
            }
        })
    }
}

fn blocks_of(range: &Range<usize>) -> Range<u16> {
    let block = |at: usize| u16::try_from(at / BLOCK).unwrap();
    block(range.start)..block(range.end - 1) + 1
}

/// What a check said.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) summary: Summary,
    pub(crate) remarks: Vec<Remark>,
}

impl Checked {
    pub(crate) fn damages(&self) -> impl Iterator<Item = &Remark> {
        self.remarks.iter().filter(|remark| remark.severity == Severity::Damage)
    }
}

#[derive(Default)]
struct Collected(std::sync::Mutex<Vec<Remark>>);

impl Observer for Collected {
    fn remark(&self, remark: &Remark) {
        self.0.lock().unwrap().push(remark.clone());
    }
}

pub(crate) fn check(snapshot: &Snapshot, boot: BootId) -> Result<Checked, Unreadable> {
    check_with(snapshot, &VerifyOptions { quick: false, boot: Some(boot) })
}

pub(crate) fn check_with(
    snapshot: &Snapshot,
    options: &VerifyOptions,
) -> Result<Checked, Unreadable> {
    let collected = Collected::default();
    let summary = verify(snapshot, options, &collected)?;
    let remarks = collected.0.into_inner().unwrap();
    let damages = remarks.iter().filter(|remark| remark.severity == Severity::Damage);
    assert_eq!(summary.damages, damages.count() as u64);
    Ok(Checked { summary, remarks })
}
