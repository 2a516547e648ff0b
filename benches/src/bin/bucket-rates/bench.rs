//! What a run starts and what it leaves behind, which is nothing; the order of its measurements.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use millrace_benches::{
    bucket,
    figures::{Figure, Figures},
    quiet,
};
use millrace_runtime::Shutdown;
use object_store::ObjectStore;
use tokio::runtime::Runtime;

use super::{
    Arguments,
    cluster::{Cluster, Endpoint, Link},
    goals::{BYTES, RAW},
    loads::Load,
    memory::Memory,
    objects::{self, Objects},
    processes::{Per, Processes},
    proxy::Proxy,
    raw,
    rivals::{self, Rival},
};

/// Everything that a run has started. When it is dropped nothing of it is left.
pub(crate) struct Bench<'a> {
    pub(crate) arguments: &'a Arguments,
    directory: &'a Path,
    runtime: &'a Runtime,
    pub(crate) shutdown: Shutdown,
    pub(crate) objects: Objects,
    /// Past the proxy: for what is not measured.
    pub(crate) direct: Arc<dyn ObjectStore>,
    /// The raw client.
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Where everybody finds the bucket.
    endpoint: String,
    pub(crate) rivals: Vec<Rival>,
    /// All but Millrace's.
    pub(crate) others: Processes,
    pub(crate) processes: Processes,
    pub(crate) memory: Memory,
    cluster: Cluster,
    _proxy: Option<Proxy>,
}

impl<'a> Bench<'a> {
    /// Starts a cluster and what else it takes, and makes the objects.
    pub(crate) fn start(
        arguments: &'a Arguments,
        directory: &'a Path,
        prefix: &str,
        runtime: &'a Runtime,
        shutdown: Shutdown,
    ) -> Result<Self> {
        let line = arguments.line();
        let proxy = line.map(|line| Proxy::start(&arguments.endpoint, line)).transpose()?;
        let endpoint = proxy.as_ref().map_or(&arguments.endpoint, |proxy| &proxy.endpoint).clone();
        let cluster = Cluster::start(arguments.millrace.as_deref(), directory, arguments.targets)?;
        let mut others = Processes::default();
        others.add("CPU of the bucket's server", arguments.server_pid.into_iter().collect());
        others.add("CPU of the proxy", proxy.iter().map(Proxy::pid).collect());
        others.add("CPU of this program", vec![std::process::id()]);
        let mut processes = others.clone();
        let mut memory = Memory::default();
        cluster.watch(&mut processes, &mut memory)?;
        let bench = Self {
            arguments,
            directory,
            runtime,
            shutdown,
            objects: Objects::new(prefix, arguments),
            direct: bucket::open(&arguments.endpoint, &arguments.bucket)?,
            store: bucket::open(&endpoint, &arguments.bucket)?,
            endpoint,
            rivals: installed(arguments),
            others,
            processes,
            memory,
            cluster,
            _proxy: proxy,
        };
        bench.wait(bench.objects.make(&bench.direct, &arguments.only))?;
        // What the server has yet to write would be written while something is measured.
        rustix::fs::sync();
        Ok(bench)
    }

    /// Measures all loads in all rounds.
    pub(crate) fn measure(&self) -> Result<Vec<(Load, Figures)>> {
        let against_raw = |load: &Load| (*load, Figures::against(RAW));
        let mut measured: Vec<_> = self.arguments.only.iter().map(against_raw).collect();
        for round in 0..self.arguments.rounds as u64 {
            for (load, figures) in &mut measured {
                match load {
                    Load::Epoch => self.epoch(round, figures)?,
                    Load::Sequential => self.sequential(figures)?,
                    Load::FirstByte => self.first_byte(figures)?,
                    Load::Hydrate => self.hydrate(figures)?,
                    Load::Export => self.export(round, figures)?,
                    Load::Import => self.import(figures)?,
                    Load::Random => self.random(round, figures)?,
                    Load::Vast => self.vast(figures)?,
                }
            }
        }
        Ok(measured)
    }

    /// What the raw client reads in a second.
    pub(crate) fn read_raw(
        &self,
        keys: Vec<(object_store::path::Path, u64)>,
        parallel: usize,
        figures: &mut Figures,
    ) -> Result<()> {
        let bytes = keys.iter().map(|(_, bytes)| bytes).sum();
        self.settle("raw")?;
        let (took, cpu) = self.others.around(Per::Gigabyte(bytes), || {
            let read = raw::read(Arc::clone(&self.store), keys, parallel);
            Ok(timed(|| self.wait(read))?.0)
        })?;
        figures.add(RAW, [rate(bytes, took)].into_iter().chain(cpu));
        Ok(())
    }

    /// Waits until nothing of the last measurement is left to do.
    pub(crate) fn settle(&self, next: &str) -> Result<()> {
        self.cluster.settle()?;
        ensure!(!self.shutdown.is_draining(), "interrupted");
        let is_quiet = quiet::wait(Duration::from_secs(self.arguments.quiet))?;
        if !is_quiet && !self.arguments.json {
            println!("a round of {next} while the machine does other things");
        }
        Ok(())
    }

    pub(crate) fn link(&self, below: &str, mode: &'static str) -> Result<Link<'_>> {
        let url = format!("s3://{}/{}", self.arguments.bucket, self.objects.key(below));
        let fetch = &self.arguments.fetch;
        self.cluster.link(&url, &Endpoint { endpoint: &self.endpoint, mode, fetch })
    }

    pub(crate) fn place(&self, below: &str) -> rivals::Place<'_> {
        rivals::Place {
            endpoint: &self.endpoint,
            bucket: &self.arguments.bucket,
            prefix: self.objects.key(below).to_string(),
            directory: self.directory.join("rival"),
        }
    }

    pub(crate) fn remove(&self, below: &str) -> Result<()> {
        self.wait(objects::remove(Arc::clone(&self.direct), self.objects.key(below)))
    }

    /// Runs what the raw client does, until the program is told to end.
    pub(crate) fn wait<T>(&self, act: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(async {
            tokio::select! {
                outcome = act => outcome,
                () = self.shutdown.draining() => bail!("interrupted"),
            }
        })
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        if self.arguments.keep {
            return;
        }
        let prefix = object_store::path::Path::from(self.objects.prefix.as_str());
        let removed = self.runtime.block_on(objects::remove(Arc::clone(&self.direct), prefix));
        if let Err(error) = removed {
            println!("objects below {} are left: {error:#}", self.objects.prefix);
        }
    }
}

/// Those of the other mounts that are there; says which are not.
fn installed(arguments: &Arguments) -> Vec<Rival> {
    let (there, missing): (Vec<_>, Vec<_>) =
        arguments.rival.iter().copied().partition(|rival| rival.is_installed());
    for rival in missing.iter().filter(|_| !arguments.json) {
        println!("without {}: it is not installed", rival.name());
    }
    there
}

/// A MB has 1,000,000 bytes, as the rates of a network have.
pub(crate) fn rate(bytes: u64, took: Duration) -> Figure {
    (BYTES, "MB/s", bytes as f64 / 1e6 / took.as_secs_f64())
}

/// What was done, and how long it took.
pub(crate) fn timed<T>(act: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let begun = Instant::now();
    let outcome = act()?;
    Ok((begun.elapsed(), outcome))
}
