//! Looks at files that were there before anything was measured, each in another directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use millrace_benches::figures::Figure;
use millrace_runtime::Random;

use super::loads::{NAMES, each, forget, shuffle, stat};

/// What stands in one place.
pub(crate) struct Standing {
    /// Directories in random order, the same in every place of one layout.
    directories: Vec<PathBuf>,
    /// Names that each of them has.
    names: Vec<PathBuf>,
    /// Directories that a round takes.
    a_round: usize,
}

impl Standing {
    /// Of `place`, where a round shall look into `a_round` directories: nothing where that is 0.
    ///
    /// # Errors
    /// When nothing stands there.
    pub(crate) fn of(place: &Path, a_round: usize) -> Result<Self> {
        let mut found = Self { directories: Vec::new(), names: Vec::new(), a_round };
        if a_round == 0 {
            return Ok(found);
        }
        found.directories = named(place, "directory-")?;
        let first = found.directories.first().context("no directory stands there");
        found.names = named(&place.join(first?), "sample-")?;
        ensure!(!found.names.is_empty(), "no file stands there");
        shuffle(&mut found.directories, ORDER);
        found.directories.iter_mut().for_each(|directory| *directory = place.join(&*directory));
        Ok(found)
    }

    /// Looks at a file in each of the directories of this round.
    ///
    /// # Errors
    /// When fewer directories stand there than all rounds take, or one has other names.
    pub(crate) fn measure(&self, round: u64) -> Result<Option<Figure>> {
        if self.a_round == 0 {
            return Ok(None);
        }
        let begin = usize::try_from(round)?.saturating_mul(self.a_round);
        let directories = self.directories.get(begin..begin.saturating_add(self.a_round));
        let directories = directories.context("more rounds than directories stand there")?;
        let random = Random::seeded(round);
        let paths: Vec<_> = directories
            .iter()
            .map(|directory| {
                let name = random.within(0..self.names.len() as u64);
                directory.join(&self.names[usize::try_from(name).expect("an index")])
            })
            .collect();
        forget(NAMES)?;
        each("stat of standing files, each elsewhere", &paths, stat).map(Some)
    }
}

/// The names in a directory that begin so, in order.
fn named(directory: &Path, beginning: &str) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let name = entry?.file_name();
        if name.to_string_lossy().starts_with(beginning) {
            names.push(PathBuf::from(name));
        }
    }
    names.sort();
    Ok(names)
}

/// The seed of the order of directories.
const ORDER: u64 = 1;
