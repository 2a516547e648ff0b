//! What jobs of the cluster do: fetching, exporting and listing, and the raw client likewise.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use millrace_benches::figures::Figures;

use super::{
    bench::{Bench, rate, timed},
    goals::{MILLRACE, NAMES, RAW},
    mounted,
    objects::{self, KEYS, TREE},
    processes::Per,
    raw,
};

impl Bench<'_> {
    pub(crate) fn hydrate(&self, figures: &mut Figures) -> Result<()> {
        let files = self.objects.tree();
        let bytes = objects::bytes(&files);
        self.read_raw(self.objects.keyed(TREE, &files), raw::GETS, figures)?;
        self.settle("Millrace")?;
        let link = self.link(TREE, "read-only")?;
        // The raw client knows the names too.
        mounted::list(&link.path)?;
        link.expect_cold()?;
        let (took, cpu) =
            self.processes.around(Per::Gigabyte(bytes), || Ok(timed(|| link.job("hydrate"))?.0))?;
        let found = link.hydrated_bytes(&link.path)?;
        ensure!(found == bytes, "{found} bytes of {bytes} are here");
        figures.add(MILLRACE, [rate(bytes, took)].into_iter().chain(cpu));
        Ok(())
    }

    pub(crate) fn export(&self, round: u64, figures: &mut Figures) -> Result<()> {
        let files = self.objects.tree();
        let per = Per::Gigabyte(objects::bytes(&files));
        let content = self.objects.content();
        self.settle("raw")?;
        let below = format!("export-{round}-raw");
        let keys = self.objects.keyed(&below, &files);
        let (took, cpu) = self.others.around(per, || {
            let put = raw::put(Arc::clone(&self.store), keys, content.clone());
            Ok(timed(|| self.wait(put))?.0)
        })?;
        figures.add(RAW, [rate(objects::bytes(&files), took)].into_iter().chain(cpu));
        self.remove(&below)?;

        let below = format!("export-{round}");
        let link = self.link(&below, "import-export")?;
        mounted::write(&link.path, &files, content, &self.shutdown)?;
        self.settle("Millrace")?;
        let (took, cpu) = self.processes.around(per, || Ok(timed(|| link.job("export"))?.0))?;
        figures.add(MILLRACE, [rate(objects::bytes(&files), took)].into_iter().chain(cpu));
        let found = self.wait(raw::list_all(&self.direct, self.objects.key(&below)))?;
        ensure!(found >= files.len(), "{found} objects of {}", files.len());
        self.remove(&below)
    }

    pub(crate) fn import(&self, figures: &mut Figures) -> Result<()> {
        let keys = self.objects.keys;
        let names = |took: Duration| (NAMES, "/s", keys as f64 / took.as_secs_f64());
        self.settle("raw")?;
        let ((took, found), cpu) = self.others.around(Per::Whole, || {
            timed(|| self.wait(raw::list(Arc::clone(&self.store), self.objects.key(KEYS))))
        })?;
        ensure!(found == keys, "{found} names of {keys}");
        figures.add(RAW, [names(took)].into_iter().chain(cpu));
        self.settle("Millrace")?;
        let link = self.link(KEYS, "read-only")?;
        let ((took, job), cpu) =
            self.processes.around(Per::Whole, || timed(|| link.job("import")))?;
        let found = job["files_done"].as_u64().unwrap_or_default();
        ensure!(found >= keys as u64, "{found} names of {keys}: {job}");
        figures.add(MILLRACE, [names(took)].into_iter().chain(cpu));
        Ok(())
    }
}
