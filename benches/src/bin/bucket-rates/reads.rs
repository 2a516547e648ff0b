//! Reading cold files: through Millrace, through other mounts, and by the raw client.

use std::{path::Path, sync::Arc, thread, time::Duration};

use anyhow::{Result, ensure};
use millrace_benches::{
    bucket,
    figures::{Figure, Figures, median},
};
use millrace_runtime::Random;

use super::{
    bench::{Bench, rate, timed},
    goals::{DIRECT, FETCHED, FILES, FIRST, MILLRACE, NAMES, RAW},
    mounted,
    objects::{self, ALONE, LARGE, LARGE_NAME, SMALL, TREE},
    processes::{MOUNT_CPU, Per, Processes},
    raw,
    rivals::Mounted,
};

impl Bench<'_> {
    pub(crate) fn epoch(&self, round: u64, figures: &mut Figures) -> Result<()> {
        let below = format!("{TREE}/{SMALL}");
        let files = objects::shuffled(&self.objects.small, round);
        let per = Per::Gigabyte(objects::bytes(&files));
        self.settle("raw")?;
        let store = || Arc::clone(&self.store);
        let (listed, found) = timed(|| self.wait(raw::list(store(), self.objects.key(&below))))?;
        ensure!(found == files.len(), "{found} names of {}", files.len());
        let keys = self.objects.keyed(&below, &files);
        let (took, cpu) = self
            .others
            .around(per, || Ok(timed(|| self.wait(raw::read(store(), keys, raw::GETS)))?.0))?;
        figures.add(RAW, epoch_figures(&files, listed, took));
        figures.add(RAW, cpu);

        self.settle("Millrace")?;
        let link = self.link(&below, "read-only")?;
        let through = |directory: &Path, processes: &Processes| -> Result<_> {
            let (listed, found) = timed(|| mounted::list(directory))?;
            ensure!(found == files.len(), "{found} names of {}", files.len());
            let readers = self.arguments.readers;
            let (took, cpu) = processes.around(per, || {
                Ok(timed(|| mounted::read(directory, &files, readers, &self.shutdown))?.0)
            })?;
            Ok(epoch_figures(&files, listed, took).into_iter().chain(cpu).collect::<Vec<_>>())
        };
        figures.add(MILLRACE, through(&link.path, &self.processes)?);
        drop(link);

        for rival in &self.rivals {
            self.settle(rival.name())?;
            let mount = Mounted::start(*rival, &self.place(&below))?;
            let mut processes = self.others.clone();
            processes.add(MOUNT_CPU, vec![mount.pid()]);
            figures.add(rival.name(), through(&mount.mountpoint, &processes)?);
        }
        Ok(())
    }

    pub(crate) fn sequential(&self, figures: &mut Figures) -> Result<()> {
        let bytes = self.objects.large;
        let name = format!("{LARGE}/{LARGE_NAME}");
        let keys = vec![(self.objects.key(&name), bytes)];
        // A cloud's bucket gives no connection its whole rate, and lets each GET wait.
        let parallel = if self.arguments.cloud { 16 } else { 8 };
        self.read_raw(keys, parallel, figures)?;
        for (contestant, direct) in [(MILLRACE, false), (DIRECT, true)] {
            self.settle(contestant)?;
            let link = self.link(LARGE, "read-only")?;
            mounted::list(&link.path)?;
            link.expect_cold()?;
            let path = link.path.join(LARGE_NAME);
            let (took, cpu) = self.processes.around(Per::Gigabyte(bytes), || {
                Ok(timed(|| mounted::stream(&path, bytes, direct, &self.shutdown))?.0)
            })?;
            figures.add(contestant, [rate(bytes, took)].into_iter().chain(cpu));
        }
        Ok(())
    }

    pub(crate) fn first_byte(&self, figures: &mut Figures) -> Result<()> {
        let files = &self.objects.alone;
        self.settle("raw")?;
        let keys = self.objects.keyed(ALONE, files);
        let took = keys.iter().map(|(key, _)| self.wait(raw::first_byte(&self.store, key)));
        figures.add(RAW, first_byte_figures(took.collect::<Result<_>>()?));
        self.settle("Millrace")?;
        let link = self.link(ALONE, "read-only")?;
        mounted::list(&link.path)?;
        link.expect_cold()?;
        let mut took = Vec::new();
        for half in files.chunks(files.len().div_ceil(2)) {
            for (name, _) in half {
                ensure!(!self.shutdown.is_draining(), "interrupted");
                took.push(mounted::first_byte(&link.path.join(name))?);
            }
            // After the first half: that nothing of the other was fetched ahead.
            let read = objects::bytes(&files[..took.len()]);
            let found = link.hydrated_bytes(&link.path)?;
            ensure!(found <= read, "{found} bytes are here, and {read} were read");
        }
        figures.add(MILLRACE, first_byte_figures(took));
        Ok(())
    }

    pub(crate) fn random(&self, round: u64, figures: &mut Figures) -> Result<()> {
        let name = format!("{LARGE}/{LARGE_NAME}");
        let place = Random::seeded(round).within(0..self.objects.large / PAGE) * PAGE;
        let ms = |took: Duration| ("time of 4 KiB", "ms", took.as_secs_f64() * 1e3);
        self.settle("raw")?;
        let get = bucket::read(
            Arc::clone(&self.store),
            self.objects.key(&name),
            Some(place..place + PAGE),
        );
        figures.add(RAW, [ms(timed(|| self.wait(get))?.0)]);
        self.settle("Millrace")?;
        let link = self.link(LARGE, "read-only")?;
        mounted::list(&link.path)?;
        link.expect_cold()?;
        let path = link.path.join(LARGE_NAME);
        let took = mounted::read_at(&path, place)?;
        // What the bucket sends behind the answer counts too.
        thread::sleep(AFTERWARDS);
        let fetched = link.hydrated_bytes(&path)? as f64 / 1024.0;
        figures.add(MILLRACE, [ms(took), (FETCHED, "KiB", fetched)]);
        Ok(())
    }
}

fn epoch_figures(files: &[(String, u64)], listed: Duration, took: Duration) -> [Figure; 3] {
    let count = files.len() as f64;
    [
        (FILES, "/s", count / took.as_secs_f64()),
        rate(objects::bytes(files), took),
        (NAMES, "/s", count / listed.as_secs_f64()),
    ]
}

fn first_byte_figures(mut took: Vec<Duration>) -> [Figure; 2] {
    took.sort();
    let ms: Vec<_> = took.iter().map(|one| one.as_secs_f64() * 1e3).collect();
    [(FIRST, "ms", median(&ms)), ("first byte, 95th of 100", "ms", ms[ms.len() * 95 / 100])]
}

const PAGE: u64 = 4096;
/// A fetch of 8 MiB is over by then, also at the rate of one connection of a cloud.
const AFTERWARDS: Duration = Duration::from_millis(500);
