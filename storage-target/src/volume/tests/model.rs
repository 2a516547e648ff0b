//! Random operations on the volume and on a model that is obviously right.

use std::collections::BTreeMap;

use millrace_runtime::Random;

use super::{
    BLOCK, BlockState, ContentGeneration, ContentName, EngineError, InodeId, Volume, WriteEpoch,
    fill, key, new_disk, open, pattern, read, used_pages, write_request, zero_request,
};
use crate::{disk::simulated::SimulatedDisk, volume::tests::ChunkKey};

const CHUNK: usize = 1024 * 1024;
const CHUNKS: u32 = 2;
const BLOCKS: usize = CHUNK / BLOCK;
/// What the bucket backs of each chunk: not a whole number of blocks or pages.
const BACKED: usize = 650_001;

/// Present blocks of each chunk with all their bytes; whether they are clean.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<(u32, usize), (bool, Vec<u8>)>,
    /// How far the bucket still backs each chunk.
    backed: BTreeMap<u32, usize>,
    epoch: u32,
    generation: u32,
}

impl Model {
    fn backed(&self, chunk: u32) -> usize {
        self.backed.get(&chunk).copied().unwrap_or(BACKED)
    }

    /// The bucket's bytes of a block, as far as it backs them.
    fn bucket(&self, chunk: u32, block: usize) -> Vec<u8> {
        let start = block * BLOCK;
        let len = self.backed(chunk).saturating_sub(start).min(BLOCK);
        pattern(u64::from(chunk) + 1000, start, len)
    }

    fn write(&mut self, chunk: u32, start: usize, bytes: &[u8], clean: bool) {
        let mut at = start;
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = rest.len().min(BLOCK - at % BLOCK);
            let blank = || (clean, vec![0; BLOCK]);
            let slot = self.blocks.entry((chunk, at / BLOCK)).or_insert_with(blank);
            slot.0 = clean;
            slot.1[at % BLOCK..at % BLOCK + len].copy_from_slice(&rest[..len]);
            at += len;
            rest = &rest[len..];
        }
    }
}

struct World {
    random: Random,
    disk: SimulatedDisk,
    volume: Option<Volume>,
    model: Model,
}

impl World {
    fn key(&self, chunk: u32) -> ChunkKey {
        let generation = ContentGeneration(self.model.generation);
        ChunkKey { generation, ..key(5, chunk) }
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn below(&self, end: usize) -> usize {
        usize::try_from(self.random.within(0..end as u64)).unwrap()
    }

    fn range(&self) -> (usize, usize) {
        let unit = [1, 512, 4096, BLOCK][self.below(4)];
        let longest = [5000, 3 * BLOCK, CHUNK][self.below(3)];
        let start = self.below(CHUNK / unit) * unit;
        let len = (1 + self.below(longest.div_ceil(unit))) * unit;
        (start, len.min(CHUNK - start))
    }

    async fn step(&mut self) {
        let chunk = u32::try_from(self.below(CHUNKS as usize)).unwrap();
        match self.below(100) {
            0..40 => self.write(chunk).await,
            40..50 => self.zero(chunk).await,
            50..70 => self.fill(chunk, self.below(BLOCKS)).await,
            70..74 => {
                self.volume().release(self.key(chunk)).await.unwrap();
                self.model.blocks.retain(|&(of, _), (clean, _)| of != chunk || !*clean);
            }
            74..78 => self.export(chunk).await,
            78..82 => self.trim().await,
            82..83 => self.reclaim().await,
            83..90 => assert_eq!(self.volume().sync().await.unwrap(), 0),
            90..96 => {
                drop(self.volume.take());
                self.volume = Some(open(&self.disk).await);
            }
            _ => {
                self.volume.take().unwrap().close().await.unwrap();
                self.volume = Some(open(&self.disk).await);
            }
        }
    }

    async fn write(&mut self, chunk: u32) {
        let (start, len) = self.range();
        let bytes = pattern(self.random.number(), start, len);
        loop {
            let mut request = write_request(self.key(chunk), start, bytes.clone());
            request.backed = u32::try_from(self.model.backed(chunk)).unwrap();
            request.write_epoch = WriteEpoch(self.model.epoch);
            match self.volume().write(request).await {
                Ok(_) => break,
                Err(EngineError::NeedsFill { block, .. }) => {
                    assert!(!self.model.blocks.contains_key(&(chunk, usize::from(block))));
                    self.fill(chunk, usize::from(block)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.model.write(chunk, start, &bytes, false);
    }

    async fn zero(&mut self, chunk: u32) {
        let (start, len) = self.range();
        loop {
            let mut request = zero_request(self.key(chunk), start..start + len);
            request.backed = u32::try_from(self.model.backed(chunk)).unwrap();
            request.write_epoch = WriteEpoch(self.model.epoch);
            match self.volume().zero(request).await {
                Ok(_) => break,
                Err(EngineError::NeedsFill { block, .. }) => {
                    self.fill(chunk, usize::from(block)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        for block in start / BLOCK..=(start + len - 1) / BLOCK {
            let part = start.max(block * BLOCK)..(start + len).min((block + 1) * BLOCK);
            let absent = !self.model.blocks.contains_key(&(chunk, block));
            // A part of an absent block that nothing backs stays a hole.
            if absent && part.len() < BLOCK && self.model.bucket(chunk, block).is_empty() {
                continue;
            }
            self.model.write(chunk, part.start, &vec![0; part.len()], false);
        }
    }

    async fn fill(&mut self, chunk: u32, block: usize) {
        let bytes = self.model.bucket(chunk, block);
        if bytes.is_empty() {
            return;
        }
        let (key, number) = (self.key(chunk), u16::try_from(block).unwrap());
        if self.model.epoch > 0 {
            let late = fill(self.volume(), key, number, &bytes, WriteEpoch(0)).await;
            assert!(matches!(late, Err(EngineError::StaleEpoch)));
        }
        fill(self.volume(), key, number, &bytes, WriteEpoch(self.model.epoch)).await.unwrap();
        if !self.model.blocks.contains_key(&(chunk, block)) {
            self.model.write(chunk, block * BLOCK, &bytes, true);
        }
    }

    async fn export(&mut self, chunk: u32) {
        let key = self.key(chunk);
        let blocks = u16::try_from(BLOCKS).unwrap();
        let snapshot = self.volume().snapshot(key, 0..blocks).await.unwrap();
        let exported = (0..blocks)
            .filter(|&block| snapshot.state(block) == BlockState::Written)
            .map(|block| (block, snapshot.fingerprint(block)))
            .collect();
        drop(snapshot);
        self.volume().mark_exported(key, &exported).await.unwrap();
        for &block in exported.keys() {
            self.model.blocks.get_mut(&(chunk, usize::from(block))).unwrap().0 = true;
        }
    }

    async fn trim(&mut self) {
        let unit = [1, 4096, BLOCK, CHUNK][self.below(4)];
        let size = self.below(CHUNKS as usize * CHUNK / unit) * unit;
        self.model.epoch += 1;
        let epoch = WriteEpoch(self.model.epoch);
        let generation = ContentGeneration(self.model.generation);
        let content = ContentName { inode: InodeId(5), generation };
        for _ in 0..2 {
            self.volume().trim(content, CHUNK as u64, size as u64, epoch).await.unwrap();
        }
        for chunk in 0..CHUNKS {
            let kept = size.saturating_sub(chunk as usize * CHUNK).min(CHUNK);
            let backed = self.model.backed(chunk).min(kept);
            self.model.backed.insert(chunk, backed);
            self.model.blocks.retain(|&(of, block), _| of != chunk || block * BLOCK < kept);
            for (&(of, block), (_, bytes)) in &mut self.model.blocks {
                if of == chunk {
                    let end = kept.saturating_sub(block * BLOCK).min(BLOCK);
                    bytes[end..].fill(0);
                }
            }
        }
    }

    async fn reclaim(&mut self) {
        let generation = ContentGeneration(self.model.generation);
        self.volume().reclaim(&[(InodeId(5), generation)]).await.unwrap();
        let again = self.volume().reclaim(&[(InodeId(5), generation)]).await.unwrap();
        assert_eq!(again.0, 0, "reclaiming twice frees nothing more");
        assert_eq!(used_pages(self.volume()).await, 0);
        let generation = self.model.generation + 1;
        self.model = Model { generation, ..Model::default() };
    }

    async fn compare(&self) {
        for chunk in 0..CHUNKS {
            let blocks = 0..u16::try_from(BLOCKS).unwrap();
            let found = read(self.volume(), self.key(chunk), blocks).await.unwrap();
            for (block, found) in found.chunks(BLOCK).enumerate() {
                let right = match self.model.blocks.get(&(chunk, block)) {
                    Some((_, bytes)) => {
                        found.iter().zip(bytes).all(|(found, byte)| *found == Some(*byte))
                    }
                    None => found.iter().all(Option::is_none),
                };
                assert!(right, "chunk {chunk} block {block} differs");
            }
        }
    }
}

async fn live(seed: u64, steps: u32) {
    let disk = new_disk(seed);
    let volume = Some(open(&disk).await);
    let random = Random::seeded(seed);
    let mut world = World { random, disk, volume, model: Model::default() };
    for step in 0..steps {
        world.step().await;
        if step % 4 == 0 {
            world.compare().await;
        }
    }
    world.compare().await;
}

#[tokio::test]
async fn the_volume_equals_the_model_through_kills_and_restarts() {
    for seed in 0..40 {
        live(seed, 100).await;
    }
}
