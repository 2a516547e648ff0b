//! A target with data, and the requests that go to it.

use std::path::Path;

use anyhow::Result;
use bytes::Bytes;
use millrace_benches::target;
use millrace_storage_target::{
    disk::{BufferPool, DiskMeter},
    journal::JournalMeter,
    volume::{Volume, WriteRequest},
};
use millrace_types::{ByteLen, ChunkKey, Crc32c, MIB};
use prometheus_client::registry::Registry;

/// All index nodes of the data set stay in memory.
pub(crate) const CACHE_LARGE: usize = 64 << 20;

/// Inner nodes stay, and next to no leaf.
pub(crate) const CACHE_SMALL: usize = 64 << 10;

/// Bytes of a chunk.
pub(crate) const CHUNK: u64 = 8 * MIB;

/// Memory for transfers, as the daemon's default.
const POOL: usize = 160 << 20;

/// What is stored: one file of chunks.
#[derive(Debug)]
pub(crate) struct DataSet {
    pub(crate) chunks: u64,
    body: Bytes,
    /// Checksums of the lengths that are written: the client's part of the work, and not measured.
    checksums: [(usize, Crc32c); 3],
}

impl DataSet {
    pub(crate) fn new(mib: u64) -> Self {
        let body: Vec<u8> =
            (0..MIB).map(|at| (at.wrapping_mul(at) >> 7).to_le_bytes()[0]).collect();
        let checksums = [4096, 16 * 1024, body.len()].map(|len| (len, Crc32c::of(&body[..len])));
        Self { chunks: mib * MIB / CHUNK, checksums, body: Bytes::from(body) }
    }

    /// A write of the first `len` bytes of the pattern at an offset of the data.
    pub(crate) fn write(&self, at: u64, len: usize) -> WriteRequest {
        self.write_to(key(at / CHUNK), at, len)
    }

    /// The same in another file.
    pub(crate) fn write_elsewhere(&self, at: u64, len: usize) -> WriteRequest {
        self.write_to(key_elsewhere(at / CHUNK), at, len)
    }

    fn write_to(&self, key: ChunkKey, at: u64, len: usize) -> WriteRequest {
        let body = self.body.slice(..len);
        let known = self.checksums.iter().find(|(known, _)| *known == len);
        let (_, checksum) = *known.expect("a length that is written");
        let offset = u32::try_from(at % CHUNK).expect("within a chunk");
        let chunk_size = u32::try_from(CHUNK).expect("8 MiB");
        target::write(key, offset, body, checksum, chunk_size)
    }
}

/// The chunk of that number.
pub(crate) fn key(chunk: u64) -> ChunkKey {
    target::chunk(1 << 20, u32::try_from(chunk).expect("few chunks"))
}

/// The chunk of that number of another file.
pub(crate) fn key_elsewhere(chunk: u64) -> ChunkKey {
    target::chunk(2 << 20, u32::try_from(chunk).expect("few chunks"))
}

/// An open target.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) volume: std::sync::Arc<Volume>,
}

impl Opened {
    pub(crate) async fn new(place: &Path, cache_bytes: usize) -> Result<Self> {
        std::fs::create_dir_all(place)?;
        let options = target::place(place.to_owned(), Some(ByteLen(64 << 30)), cache_bytes)?;
        let volume = Volume::open_at(&options, BufferPool::new(POOL)).await?;
        Ok(Self { volume: std::sync::Arc::new(volume) })
    }

    /// Counts what the journal does from now on; see [`Groups`].
    pub(crate) fn count_groups(&self) -> Groups {
        let (disk, journal) = (DiskMeter::default(), JournalMeter::default());
        let mut registry = Registry::default();
        registry.register("group", "", journal.flush_records.clone());
        registry.register("batch", "", journal.batch_records.clone());
        registry.register("phase", "", journal.phases.clone());
        registry.register("disk", "", disk.latencies.clone());
        self.volume.measure(disk, journal);
        Groups(registry)
    }

    /// Ends it in order.
    pub(crate) async fn close(self) -> Result<()> {
        Ok(self.volume.close().await?)
    }
}

/// What a journal has done since it was counted.
#[derive(Debug)]
pub(crate) struct Groups(Registry);

impl Groups {
    /// The means: records of a group and of a batch, and how long each phase took.
    pub(crate) fn means(&self) -> Result<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0)?;
        let value = |name: &str| -> Option<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        let mean = |name: &str, labels: &str| {
            let part = |what: &str| value(&format!("{name}_{what}{labels}")).unwrap_or_default();
            part("sum") / part("count").max(1.0)
        };
        let phase = |name: &str| mean("phase", &format!("{{phase=\"{name}\"}}")) * 1e3;
        let disk = |name: &str| mean("disk", &format!("{{operation=\"{name}\"}}")) * 1e3;
        Ok(format!(
            "{:.1} records a group, {:.1} a batch; a group waits {:.3} ms for its batch, {:.3} ms \
             for data, {:.3} ms for the sync; any write takes the disk {:.3} ms",
            mean("group", ""),
            mean("batch", ""),
            phase("write"),
            phase("data"),
            phase("sync"),
            disk("write"),
        ))
    }
}
