//! A directory of a million keys or so: how long its first name takes, and what jobs over all of
//! them take and keep in memory.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use millrace_benches::figures::{Figure, Figures, median};
use object_store::{ObjectStoreExt as _, path::Path as Key};

use super::{
    bench::{Bench, timed},
    cluster::Link,
    goals::{LOOKUP, NAMES, RAW},
    objects::{VAST, name_in_vast},
    raw,
};

impl Bench<'_> {
    pub(crate) fn vast(&self, figures: &mut Figures) -> Result<()> {
        let keys = self.objects.vast;
        // From the middle to the end: no listing comes so far that soon.
        let names: Vec<_> =
            (0..LOOKUPS).map(|nth| name_in_vast(keys - 1 - nth * keys / 8)).collect();
        self.settle("raw")?;
        let heads = names.iter().map(|name| {
            let key = self.objects.key(&format!("{VAST}/{name}"));
            Ok(timed(|| self.wait(self.head(&key)))?.0)
        });
        let heads = heads.collect::<Result<Vec<_>>>()?;
        let listed = raw::list(Arc::clone(&self.store), self.objects.key(VAST));
        let (took, found) = timed(|| self.wait(listed))?;
        ensure!(found == keys, "{found} names of {keys}");
        figures.add(RAW, [per_second(keys, took), lookup(&heads)]);

        self.settle("Millrace")?;
        let link = self.link(VAST, "read-only")?;
        let looks = names.iter().map(|name| {
            let (took, found) = timed(|| Ok(fs::metadata(link.path.join(name))?))?;
            ensure!(found.len() == 1, "{name} has {} bytes", found.len());
            Ok(took)
        });
        figures.add("import", [lookup(&looks.collect::<Result<Vec<_>>>()?)]);
        for kind in ["import", "hydrate", "release"] {
            self.over_all(kind, &link, figures)?;
        }
        Ok(())
    }

    /// Runs a job over all of it, and says what memory daemons had at most meanwhile.
    fn over_all(&self, kind: &str, link: &Link<'_>, figures: &mut Figures) -> Result<()> {
        let keys = self.objects.vast;
        let ((took, job), memory) = self.memory.around(|| timed(|| link.job(kind)))?;
        let done = job["files_done"].as_u64().unwrap_or_default();
        ensure!(done >= keys as u64 && job["errors"] == 0, "{kind} of {keys}: {job}");
        figures.add(kind, [per_second(keys, took)].into_iter().chain(memory));
        let here = if kind == "hydrate" { keys as u64 } else { 0 };
        let found = link.hydrated_bytes(&link.path)?;
        ensure!(found == here, "{found} bytes of {here} are here after {kind}");
        Ok(())
    }

    async fn head(&self, key: &Key) -> Result<()> {
        self.store.head(key).await?;
        Ok(())
    }
}

fn per_second(keys: usize, took: Duration) -> Figure {
    (NAMES, "/s", keys as f64 / took.as_secs_f64())
}

fn lookup(took: &[Duration]) -> Figure {
    let took: Vec<_> = took.iter().map(|took| took.as_secs_f64() * 1e3).collect();
    (LOOKUP, "ms", median(&took))
}

const LOOKUPS: usize = 5;
