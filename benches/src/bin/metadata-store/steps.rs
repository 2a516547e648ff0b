//! What one process of a round does, on an engine of its own.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use millrace_benches::target::scramble;
use millrace_metadata_server::{
    command::{Command, Create, RegisterHost, Remove},
    engine::{
        Core, Engine, EngineSettings, StoreKind,
        snapshots::{Place, Purpose, Taking},
    },
    namespace::tree,
};
use millrace_protocol::{metadata::NewNode, session::Caller};
use millrace_types::{ByteLen, ClusterId, ErrorKind, Failure, FileName, HostId, InodeId, TargetId};

use super::{
    Arguments,
    layout::{Layout, directory_name, file_name},
};

/// See the module above.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Fill,
    Use,
    Again,
    Anew,
}

impl Step {
    /// What it measures.
    pub(super) fn figures(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Fill => &[
                ("files made", "a second"),
                ("longest thousand of them", "ms"),
                ("most memory while making", "MiB"),
                ("store on the disk when filled", "MiB"),
            ],
            Self::Use => &[
                ("start after a kill", "ms"),
                ("lookups in random order", "a second"),
                ("names listed with attributes", "a second"),
                ("memory after reading", "MiB"),
                ("removals in random order", "a second"),
                ("store on the disk after removals", "MiB"),
            ],
            Self::Again => &[("start after a stop in order", "ms"), ("snapshot", "ms")],
            Self::Anew => &[("start without its store", "ms"), ("store made anew", "MiB")],
        }
    }
}

pub(super) fn run(
    arguments: &Arguments,
    store: StoreKind,
    step: Step,
) -> Result<BTreeMap<&'static str, f64>> {
    let settings = settings(arguments, store);
    if step == Step::Anew
        && let Some(folder) = store.folder()
    {
        fs::remove_dir_all(settings.dir.join(folder))?;
    }
    let begun = Instant::now();
    let engine = Engine::start(settings.clone())?;
    let started = millis(begun.elapsed());
    let server = Server { engine, settings, layout: layout(arguments) };
    let mut figures = BTreeMap::new();
    match step {
        Step::Fill => server.fill(&mut figures)?,
        Step::Use => {
            figures.insert("start after a kill", started);
            server.use_it(arguments.operations, &mut figures)?;
        }
        Step::Again => {
            figures.insert("start after a stop in order", started);
            figures.insert("snapshot", server.snapshot()?);
            server.engine.stop()?;
        }
        Step::Anew => {
            figures.insert("start without its store", started);
            server.engine.stop()?;
            figures.insert("store made anew", server.disk_mib()?);
        }
    }
    Ok(figures)
}

/// Makes the inodes in the file system of a cluster whose metadata server is stopped.
pub(super) fn fill_cluster(arguments: &Arguments, cluster: ClusterId) -> Result<()> {
    let [contestant] = arguments.engine[..] else {
        bail!("name the engine of the server's settings: --engine lsm or --engine sled");
    };
    let settings = EngineSettings { cluster, ..settings(arguments, contestant.store()) };
    let engine = Engine::start(settings.clone())?;
    let server = Server { engine, settings, layout: layout(arguments) };
    server.fill_directories(&mut BTreeMap::new())?;
    Ok(server.engine.stop()?)
}

fn settings(arguments: &Arguments, store: StoreKind) -> EngineSettings {
    let new = EngineSettings::new(arguments.directory.clone(), ClusterId([7; 16]));
    EngineSettings {
        store,
        cache_bytes: arguments.cache_mib << 20,
        // Only where a step asks for one.
        snapshot_bytes: u64::MAX,
        ..new
    }
}

fn layout(arguments: &Arguments) -> Layout {
    Layout { files: arguments.inodes, a_directory: arguments.files_a_directory }
}

struct Server {
    engine: Engine,
    settings: EngineSettings,
    layout: Layout,
}

impl Server {
    fn turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        Ok(self.engine.handle().blocking_turn(work)?)
    }

    fn fill(&self, figures: &mut BTreeMap<&'static str, f64>) -> Result<()> {
        let target = (TargetId([1; 8]), ByteLen(1 << 40));
        let register = RegisterHost {
            host: HostId([1; 16]),
            name: "target".to_owned(),
            addresses: vec!["127.0.0.1:1".to_owned()],
            targets: vec![target],
        };
        self.turn(move |core| core.execute(None, Command::RegisterHost(register)))?;
        self.fill_directories(figures)
    }

    fn fill_directories(&self, figures: &mut BTreeMap<&'static str, f64>) -> Result<()> {
        let directories = self.layout.directories();
        for first in (0..directories).step_by(BATCH) {
            let numbers = first..(first + BATCH as u64).min(directories);
            self.turn(move |core| {
                numbers.into_iter().try_for_each(|number| {
                    make(core, InodeId::ROOT, directory_name(number), NewNode::Directory)
                })
            })?;
        }
        let begun = Instant::now();
        let mut longest = Duration::ZERO;
        for group in self.layout.groups() {
            longest = longest.max(self.fill_some(group)?);
        }
        let seconds = begun.elapsed().as_secs_f64();
        figures.insert("files made", self.layout.files as f64 / seconds);
        figures.insert("longest thousand of them", millis(longest));
        figures.insert("most memory while making", memory_mib("VmHWM:")?);
        figures.insert("store on the disk when filled", self.disk_mib()?);
        Ok(())
    }

    /// Fills some directories, a file in each by turns; returns the time of the longest turn.
    fn fill_some(&self, group: Range<u64>) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        let count = self.layout.files_in(&group);
        let ids = self.turn(move |core| group.map(|number| directory(core, number)).collect())?;
        let ids: Vec<InodeId> = ids;
        let width = ids.len() as u64;
        for begin in (0..count).step_by(BATCH) {
            let (ids, end) = (ids.clone(), (begin + BATCH as u64).min(count));
            let begun = Instant::now();
            self.turn(move |core| {
                (begin..end).try_for_each(|nth| {
                    let at = usize::try_from(nth % width).unwrap_or_default();
                    make(core, ids[at], file_name(nth / width), NewNode::Regular)
                })
            })?;
            longest = longest.max(begun.elapsed());
        }
        Ok(longest)
    }

    fn use_it(&self, operations: u64, figures: &mut BTreeMap<&'static str, f64>) -> Result<()> {
        let layout = self.layout;
        let files = layout.files;
        let looked_up = self.each_batch(operations, move |core, nth| {
            let (directory, name) = layout.place(scramble(nth) % files);
            look_up(core, directory, &name).map(drop)
        })?;
        figures.insert("lookups in random order", looked_up);
        figures.insert("names listed with attributes", self.list_some()?);
        figures.insert("memory after reading", memory_mib("VmRSS:")?);
        // A step that shares nothing with the count meets each file at most once.
        let removals = operations.min(files / 2);
        let step = (files / 1000 * 618 + 1..).find(|step| share(*step, files) == 1);
        let step = step.context("there is always one")?;
        let removed = self.each_batch(removals, move |core, nth| {
            let (directory, name) = layout.place(nth * step % files);
            let parent = look_up(core, InodeId::ROOT, &directory)?;
            let remove = Remove {
                caller: Caller::ROOT,
                parent,
                name,
                directory: false,
                readers: Vec::new(),
            };
            core.execute(None, Command::Remove(remove)).map(drop)
        });
        figures.insert("removals in random order", removed?);
        self.engine.stop()?;
        figures.insert("store on the disk after removals", self.disk_mib()?);
        Ok(())
    }

    /// Does `count` things, some in each turn; returns how many a second.
    fn each_batch(
        &self,
        count: u64,
        work: impl Fn(&mut Core, u64) -> Result<(), Failure> + Clone + Send + 'static,
    ) -> Result<f64> {
        let begun = Instant::now();
        for begin in (0..count).step_by(BATCH) {
            let (work, end) = (work.clone(), (begin + BATCH as u64).min(count));
            self.turn(move |core| (begin..end).try_for_each(|nth| work(core, nth)))?;
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }

    /// Lists directories in random order, each name with its inode; returns names a second.
    fn list_some(&self) -> Result<f64> {
        let Layout { a_directory, .. } = self.layout;
        let directories = self.layout.directories();
        let (begun, mut names) = (Instant::now(), 0);
        for nth in 0..directories.min(LISTINGS) {
            let number = scramble(nth + 1) % directories;
            names += self.turn(move |core| {
                let directory = directory(core, number)?;
                let limit = usize::try_from(a_directory).unwrap_or(usize::MAX);
                let listed = tree::list(core.view(), directory, 0, limit);
                let listed = listed.map_err(|error| core.failure(error.into()))?;
                for (_, entry) in &listed {
                    tree::named(core.view(), entry).map_err(|error| core.failure(error.into()))?;
                }
                Ok(listed.len())
            })?;
        }
        ensure!(names > 0, "nothing is listed");
        Ok(names as f64 / begun.elapsed().as_secs_f64())
    }

    fn snapshot(&self) -> Result<f64> {
        let begun = Instant::now();
        let place = Place::of(&self.settings);
        let mut taking = Taking::begin(self.engine.handle(), &place, Purpose::Recovery)?;
        while taking.step()? {}
        taking.keep()?;
        Ok(millis(begun.elapsed()))
    }

    fn disk_mib(&self) -> Result<f64> {
        let bytes = match self.settings.store.folder() {
            Some(folder) => disk_bytes(&self.settings.dir.join(folder))?,
            None => 0,
        };
        Ok(bytes as f64 / f64::from(1 << 20))
    }
}

fn make(core: &mut Core, parent: InodeId, name: FileName, node: NewNode) -> Result<(), Failure> {
    let inode = core.new_inode_id()?;
    let create = Create {
        caller: Caller::ROOT,
        parent,
        name,
        node,
        mode: 0o755,
        inode,
        seed: 0,
        open: None,
        exclusive: true,
    };
    core.execute(None, Command::Create(create)).map(drop)
}

/// A name's inode, as `lookup` finds it.
fn look_up(
    core: &mut Core,
    directory: impl Directory,
    name: &FileName,
) -> Result<InodeId, Failure> {
    let parent = directory.find(core)?;
    let entry = tree::entry(core.view(), parent, name);
    let entry = entry.map_err(|error| core.failure(error.into()))?.ok_or(ErrorKind::NotFound)?;
    let inode = tree::named(core.view(), &entry);
    Ok(inode.map_err(|error| core.failure(error.into()))?.id)
}

/// A directory by its id or by its name in the root.
trait Directory {
    fn find(self, core: &mut Core) -> Result<InodeId, Failure>;
}

impl Directory for InodeId {
    fn find(self, _: &mut Core) -> Result<InodeId, Failure> {
        Ok(self)
    }
}

impl Directory for FileName {
    fn find(self, core: &mut Core) -> Result<InodeId, Failure> {
        look_up(core, InodeId::ROOT, &self)
    }
}

fn directory(core: &mut Core, number: u64) -> Result<InodeId, Failure> {
    look_up(core, InodeId::ROOT, &directory_name(number))
}

fn share(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// What the process has resident, or has had at most.
fn memory_mib(field: &str) -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no such field")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// What a directory takes on the disk.
fn disk_bytes(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => disk_bytes(&entry.path())?,
            // The engine's own threads may have removed it since.
            false => entry.metadata().map_or(0, |metadata| metadata.blocks() * 512),
        };
    }
    Ok(bytes)
}

/// Operations of one turn of the engine.
const BATCH: usize = 1000;

/// Directories that are listed at most.
const LISTINGS: u64 = 500;
