//! Random operations on the engine and on a model that is obviously right.

use std::collections::BTreeMap;

use millrace_protocol::target::ContentName;
use millrace_types::{BLOCK_SIZE, ChunkKey, ContentGeneration, InodeId, WriteEpoch};
use proptest::prelude::*;

use super::{Engine, fill, key, open, options, pattern, read, write_request, zero_request};
use crate::engine::EngineError;

const CHUNK: usize = 256 * 1024;
const BLOCK: usize = 64 * 1024;
/// What the bucket backs of each chunk: not a whole number of blocks or pages.
const BACKED: usize = 150_001;

#[derive(Clone, Debug)]
enum Op {
    Write { chunk: u32, start: usize, len: usize, seed: u64 },
    Zero { chunk: u32, start: usize, len: usize },
    Fill { chunk: u32, block: usize },
    Release { chunk: u32 },
    Trim { size: usize },
    Reclaim,
    Sync,
    Kill,
    Close,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let place = (0_u32..3, 0..CHUNK, 1..CHUNK);
    let op = prop_oneof![
        8 => (place.clone(), any::<u64>()).prop_map(|((chunk, start, len), seed)| {
            Op::Write { chunk, start, len: len.min(CHUNK - start), seed }
        }),
        2 => place.prop_map(|(chunk, start, len)| {
            Op::Zero { chunk, start, len: len.min(CHUNK - start) }
        }),
        4 => (0_u32..3, 0_usize..3).prop_map(|(chunk, block)| Op::Fill { chunk, block }),
        1 => (0_u32..3).prop_map(|chunk| Op::Release { chunk }),
        1 => (0..3 * CHUNK).prop_map(|size| Op::Trim { size }),
        1 => Just(Op::Reclaim),
        2 => Just(Op::Sync),
        2 => Just(Op::Kill),
        1 => Just(Op::Close),
    ];
    prop::collection::vec(op, 1..40)
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Clean,
    Written,
    Zero,
}

/// Present blocks of each chunk with all their bytes.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<(u32, usize), (State, Vec<u8>)>,
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

    fn write(&mut self, chunk: u32, start: usize, bytes: &[u8], state: &State) {
        for (at, &byte) in (start..).zip(bytes) {
            let slot = self
                .blocks
                .entry((chunk, at / BLOCK))
                .or_insert_with(|| (state.clone(), vec![0; BLOCK]));
            slot.0 = state.clone();
            slot.1[at % BLOCK] = byte;
        }
    }

    fn expected(&self, chunk: u32) -> Vec<Option<u8>> {
        (0..CHUNK / BLOCK)
            .flat_map(|block| match self.blocks.get(&(chunk, block)) {
                Some((_, bytes)) => bytes.iter().copied().map(Some).collect(),
                None => vec![None; BLOCK],
            })
            .collect()
    }
}

struct World {
    engine: Option<Engine>,
    dir: tempfile::TempDir,
    model: Model,
}

impl World {
    fn key(&self, chunk: u32) -> ChunkKey {
        let generation = ContentGeneration(self.model.generation);
        ChunkKey { generation, ..key(5, chunk) }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Write { chunk, start, len, seed } => self.write(chunk, start, len, seed).await,
            Op::Zero { chunk, start, len } => self.zero(chunk, start, len).await,
            Op::Fill { chunk, block } => self.fill(chunk, block).await,
            Op::Release { chunk } => {
                self.engine().release(self.key(chunk)).await.unwrap();
                self.model
                    .blocks
                    .retain(|&(of, _), (state, _)| of != chunk || *state != State::Clean);
            }
            Op::Trim { size } => self.trim(size).await,
            Op::Reclaim => {
                let generation = ContentGeneration(self.model.generation);
                self.engine().reclaim(&[(InodeId(5), generation)]).await.unwrap();
                let again = self.engine().reclaim(&[(InodeId(5), generation)]).await.unwrap();
                assert_eq!(again.0, 0, "reclaiming twice frees nothing more");
                let generation = self.model.generation + 1;
                self.model = Model { generation, ..Model::default() };
            }
            Op::Sync => assert_eq!(self.engine().sync().await.unwrap(), 0),
            Op::Kill => {
                drop(self.engine.take());
                self.engine = Some(open(&options(self.dir.path())));
            }
            Op::Close => {
                self.engine.take().unwrap().close().await.unwrap();
                self.engine = Some(open(&options(self.dir.path())));
            }
        }
    }

    async fn write(&mut self, chunk: u32, start: usize, len: usize, seed: u64) {
        let bytes = pattern(seed, start, len);
        loop {
            let mut request = write_request(self.key(chunk), start, bytes.clone());
            request.backed = u32::try_from(self.model.backed(chunk)).unwrap();
            request.write_epoch = WriteEpoch(self.model.epoch);
            match self.engine().write(request).await {
                Ok(_) => break,
                Err(EngineError::NeedsFill { block, .. }) => {
                    assert!(!self.model.blocks.contains_key(&(chunk, usize::from(block))));
                    self.fill(chunk, usize::from(block)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.model.write(chunk, start, &bytes, &State::Written);
    }

    async fn zero(&mut self, chunk: u32, start: usize, len: usize) {
        let range = u32::try_from(start).unwrap()..u32::try_from(start + len).unwrap();
        loop {
            let mut request = zero_request(self.key(chunk), range.clone());
            request.backed = u32::try_from(self.model.backed(chunk)).unwrap();
            request.write_epoch = WriteEpoch(self.model.epoch);
            match self.engine().zero(request).await {
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
            let covers_backed = !self.model.bucket(chunk, block).is_empty();
            if absent && part.len() < BLOCK && !covers_backed {
                continue;
            }
            self.model.write(chunk, part.start, &vec![0; part.len()], &State::Zero);
            let whole = self.model.blocks.get_mut(&(chunk, block)).unwrap();
            // Only whether it is clean matters to the model.
            whole.0 = State::Written;
        }
    }

    async fn fill(&mut self, chunk: u32, block: usize) {
        let bytes = self.model.bucket(chunk, block);
        if bytes.is_empty() {
            return;
        }
        let mut request_epoch =
            fill(self.engine(), self.key(chunk), u16::try_from(block).unwrap(), &bytes).await;
        if self.model.epoch > 0 {
            assert!(matches!(request_epoch, Err(EngineError::StaleEpoch)));
            request_epoch = super::fill_at(
                self.engine(),
                self.key(chunk),
                u16::try_from(block).unwrap(),
                &bytes,
                WriteEpoch(self.model.epoch),
            )
            .await;
        }
        request_epoch.unwrap();
        if !self.model.blocks.contains_key(&(chunk, block)) {
            self.model.write(chunk, block * BLOCK, &bytes, &State::Clean);
        }
    }

    async fn trim(&mut self, size: usize) {
        self.model.epoch += 1;
        let epoch = WriteEpoch(self.model.epoch);
        let generation = ContentGeneration(self.model.generation);
        let content = ContentName { inode: InodeId(5), generation };
        for _ in 0..2 {
            self.engine().trim(content, CHUNK as u64, size as u64, epoch).await.unwrap();
        }
        for chunk in 0..3_u32 {
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

    async fn compare(&self) {
        for chunk in 0..3 {
            let found = read(self.engine(), self.key(chunk), 0, CHUNK).await.unwrap();
            let expected = self.model.expected(chunk);
            for (block, (found, expected)) in
                found.chunks(BLOCK).zip(expected.chunks(BLOCK)).enumerate()
            {
                // The reader calls what is absent missing; the model has no bytes for it.
                let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
                assert_eq!(at, None, "chunk {chunk} block {block} differs");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_equals_the_model_through_kills_and_restarts(ops in ops()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let engine = Some(open(&options(dir.path())));
            let mut world = World { engine, dir, model: Model::default() };
            for op in ops {
                world.apply(op).await;
                world.compare().await;
            }
        });
    }
}

const _: () = assert!(BLOCK as u64 == BLOCK_SIZE);
