//! Daemons that keep idle processors awake while they are busy, and only then.

use std::{
    env,
    fs::{self, File},
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    daemon::Daemon,
    program::wait_for,
};

const REQUESTS: &str = "/dev/cpu_dma_latency";

/// Whether the process has a request with the kernel: that file open.
fn keeps_awake(daemon: &Daemon) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid)).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|to| to == Path::new(REQUESTS))
}

/// Whether the kernel takes such requests of this program.
fn is_possible() -> Result<bool> {
    let can = File::options().write(true).open(REQUESTS).is_ok();
    let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_LATENCY_REQUESTS").is_some();
    ensure!(can || may_lack, "{REQUESTS} cannot be opened, see scripts/test.sh");
    Ok(!may_lack)
}

fn with(keep: &str) -> Wish {
    let keep = ("MILLRACE_PROCESSORS__KEEP_AWAKE".to_owned(), keep.to_owned());
    Wish { environment: vec![keep], ..Wish::default() }
}

/// Programs that make and remove files as fast as they can.
const PROGRAMS: usize = 8;

/// Runs `test` while they do.
fn under_load(cluster: &Cluster, test: impl FnOnce() -> Result<()>) -> Result<()> {
    let is_over = AtomicBool::new(false);
    let work = |program: usize| {
        let mut number = 0_u64;
        while !is_over.load(Ordering::Acquire) {
            let file = cluster.mount().join(format!("{program}-{number}"));
            fs::write(&file, b"something")?;
            fs::remove_file(file)?;
            number += 1;
        }
        io::Result::Ok(number)
    };
    thread::scope(|scope| {
        let programs: Vec<_> =
            (0..PROGRAMS).map(|program| scope.spawn(move || work(program))).collect();
        let tested = test();
        is_over.store(true, Ordering::Release);
        let mut made = 0;
        for program in programs {
            made += program.join().expect("a program does not panic")?;
        }
        tested.with_context(|| format!("{made} files were made"))
    })
}

fn wait_until_all(daemons: &[Daemon], keep: bool) -> Result<()> {
    daemons.iter().try_for_each(|daemon| {
        let does = if keep { "keep processors awake" } else { "let processors sleep" };
        let what = format!("{} to {does}", daemon.name);
        wait_for(&what, || (keeps_awake(daemon) == keep).then_some(()))
    })
}

fn metadata_and_mount(cluster: &Cluster) -> Result<[Daemon; 2]> {
    Ok([cluster.daemon("metadata")?, cluster.daemon("mount-0")?])
}

/// They begin to keep processors awake under load, and cease when it is over.
fn come_and_go(cluster: &Cluster, daemons: &[Daemon]) -> Result<()> {
    under_load(cluster, || wait_until_all(daemons, true))?;
    wait_until_all(daemons, false)
}

#[test]
fn daemons_keep_processors_awake_while_they_are_busy_and_let_them_sleep_afterwards() -> Result<()> {
    if !is_possible()? {
        return Ok(());
    }
    let cluster = Cluster::start(with("always"))?;
    let daemons = metadata_and_mount(&cluster)?;
    // What the start has kept awake.
    wait_until_all(&daemons, false)?;
    come_and_go(&cluster, &daemons)?;
    come_and_go(&cluster, &daemons)
}

/// Others are asked for how long it takes until they do.
#[test]
fn daemons_that_are_told_to_let_processors_sleep_do() -> Result<()> {
    if !is_possible()? {
        return Ok(());
    }
    let (cluster, other) = (Cluster::start(with("never"))?, Cluster::start(with("always"))?);
    let (daemons, others) = (metadata_and_mount(&cluster)?, metadata_and_mount(&other)?);
    wait_until_all(&others, false)?;
    under_load(&cluster, || {
        for _ in 0..2 {
            under_load(&other, || {
                wait_until_all(&others, true)?;
                ensure!(daemons.iter().all(|daemon| daemon.is_alive() && !keeps_awake(daemon)));
                Ok(())
            })?;
            wait_until_all(&others, false)?;
        }
        Ok(())
    })
}
