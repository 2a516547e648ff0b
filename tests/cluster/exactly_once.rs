//! kill -9 of the metadata server at random moments under programs that change names on two mounts:
//! each change is done exactly once, and no program learns that there was a kill.
//!
//! Every worker keeps a model of its own names. Some lie in a directory of its own, the others in
//! directories where all work. A change that was done and is asked for again would be refused (a
//! mkdir with EEXIST, an unlink or a rename with ENOENT) or be seen in the number of links; one
//! that was acknowledged and not done would be missing.
//!
//! `MILLRACE_TEST_SEED` chooses the seed, `MILLRACE_TEST_LENGTH` makes it so many times as long.

#[path = "exactly_once/model.rs"]
mod model;
#[path = "exactly_once/worker.rs"]
mod worker;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use millrace_runtime::Random;
use millrace_tests::{
    chance,
    cluster::{Cluster, Wish},
    figures,
    program::wait_for,
    starter::Starter,
};

use self::{
    model::Model,
    worker::{SHARED, Worker},
};

const KILLS: u64 = 10;
const WORKERS: usize = 8;

/// Milliseconds. A server is ready some 0.3 s after its start; between two kills there is load,
/// too.
const LIFE_MAX: u64 = 1500;
/// Milliseconds: every fourth kill meets a server that is starting, or has just been ready.
const START_MAX: u64 = 600;
/// A request goes on within a second of the server's return, and this machine may be busy.
const PAUSE_MAX: Duration = Duration::from_secs(100);
/// A start that was cut short by a kill says so.
const STARTS_MAX: usize = 5;

#[test]
fn programs_notice_no_kill_of_the_metadata_server_and_each_change_is_done_once() -> Result<()> {
    let (seed, kills) = (chance::seed()?, KILLS * chance::length()?);
    let cluster = Cluster::start(Wish::default())?;
    let mounts = [cluster.mount(), cluster.mount_named("second")];
    cluster.mount_also(&mounts[1])?;
    for folder in SHARED {
        fs::create_dir(mounts[0].join(folder))?;
    }
    let random = Random::seeded(seed);
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        // Half of them stay on a mount each, the others change between the two.
        let places = if number < 4 { vec![mounts[number % 2].clone()] } else { mounts.to_vec() };
        workers.push(Worker::new(number, places, random.number())?);
    }
    let mut starter = Starter::new(&cluster)?;
    let begun = Instant::now();
    under_kills(&cluster, &mut starter, kills, &random, &mut workers)?;
    let took = begun.elapsed();

    let changes: u64 = workers.iter().map(|worker| worker.changes).sum();
    let pause = workers.iter().map(|worker| worker.longest).max().context("there are workers")?;
    ensure!(changes > kills * 20, "{changes} changes under {kills} kills: there was no load");
    ensure!(pause < PAUSE_MAX, "a program waited {pause:?}");
    for mount in &mounts {
        check(mount, &workers).with_context(|| format!("{}", mount.display()))?;
    }
    // What the log has, as one sees it who has seen nothing before.
    cluster.crash("metadata")?;
    let fresh = cluster.mount_named("fresh");
    cluster.mount_also(&fresh)?;
    check(&fresh, &workers).context("a new mount after the last restart")?;
    figures::report(&format!(
        "{kills} kills of the metadata server in {:.0} s under {WORKERS} programs on two mounts: \
         {changes} changes, each done once; the longest wait was {:.1} s",
        took.as_secs_f64(),
        pause.as_secs_f64(),
    ))
}

/// Lets all workers work while the metadata server is killed so many times.
fn under_kills(
    cluster: &Cluster,
    starter: &mut Starter,
    kills: u64,
    random: &Random,
    workers: &mut [Worker],
) -> Result<()> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let working: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let ended = &ended;
                scope.spawn(move || {
                    let done = worker.work(ended);
                    // One that has found something wrong ends the others, too.
                    ended.store(true, Ordering::Relaxed);
                    done
                })
            })
            .collect();
        let killed = kill_repeatedly(cluster, starter, kills, random, &ended);
        ended.store(true, Ordering::Relaxed);
        if killed.is_err() {
            // Without servers the workers would wait for ever, and with them this test.
            for daemon in cluster.daemons() {
                daemon.kill()?;
            }
        }
        let done = working
            .into_iter()
            .try_for_each(|working| working.join().expect("a worker answers with errors"));
        killed.and(done)
    })
}

fn kill_repeatedly(
    cluster: &Cluster,
    starter: &mut Starter,
    kills: u64,
    random: &Random,
    ended: &AtomicBool,
) -> Result<()> {
    for kill in 0..kills {
        let early = kill % 4 == 3;
        if early {
            starter.begin()?;
        }
        // From right after it began, or was ready: while the mounts come back, too.
        let longest = if early { START_MAX } else { LIFE_MAX };
        thread::sleep(Duration::from_millis(random.within(0..longest)));
        // A starter that was not fast enough has started nothing yet.
        let daemon = wait_for("the metadata server", || cluster.daemon("metadata").ok())?;
        daemon.kill()?;
        if early {
            starter.finish()?;
        }
        if kill % 4 != 2 {
            start(starter).with_context(|| format!("after kill {kill}"))?;
        }
        if ended.load(Ordering::Relaxed) {
            return start(starter);
        }
    }
    start(starter)
}

fn start(starter: &mut Starter) -> Result<()> {
    for _ in 0..STARTS_MAX {
        starter.begin()?;
        if starter.finish()? {
            return Ok(());
        }
    }
    bail!("the metadata server does not start")
}

/// A mount shows what the workers' models have, and nothing else.
fn check(mount: &Path, workers: &[Worker]) -> Result<()> {
    let models: Vec<&Model> = workers.iter().map(|worker| &worker.model).collect();
    let listed = |folder: &Path| -> Result<BTreeSet<PathBuf>> {
        let entries = fs::read_dir(mount.join(folder))?;
        entries.map(|entry| Ok(folder.join(entry?.file_name()))).collect()
    };
    let folders = SHARED.map(PathBuf::from).into_iter().chain(models.iter().map(|m| m.own()));
    let folders: BTreeSet<_> = folders.collect();
    ensure!(listed(Path::new(""))? == folders, "{:?} in the root", listed(Path::new(""))?);
    let mut shown = BTreeSet::new();
    for folder in &folders {
        shown.extend(listed(folder)?);
    }
    let wanted = models.iter().flat_map(|model| model.paths()).collect();
    let (more, less): (Vec<_>, Vec<_>) =
        (shown.difference(&wanted).collect(), wanted.difference(&shown).collect());
    ensure!(more.is_empty() && less.is_empty(), "too much: {more:?}, missing: {less:?}");
    models.iter().try_for_each(|model| model.compare(mount))
}
