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

    /// Looks at a file in each of the directories of this round; and at all files of two others, in
    /// their order and in none. The mount has seen none of them.
    ///
    /// # Errors
    /// When fewer directories stand there than all rounds take, or one has other names.
    pub(crate) fn measure(&self, round: u64) -> Result<Vec<Figure>> {
        if self.a_round == 0 {
            return Ok(Vec::new());
        }
        let width = self.a_round + WHOLE;
        let begin = usize::try_from(round)?.saturating_mul(width);
        let directories = self.directories.get(begin..begin.saturating_add(width));
        let directories = directories.context("more rounds than directories stand there")?;
        let (each_elsewhere, whole) = directories.split_at(self.a_round);
        let random = Random::seeded(round);
        let elsewhere: Vec<_> = each_elsewhere
            .iter()
            .map(|directory| {
                let name = random.within(0..self.names.len() as u64);
                directory.join(&self.names[usize::try_from(name).expect("an index")])
            })
            .collect();
        let in_order: Vec<_> = self.names.iter().map(|name| whole[0].join(name)).collect();
        let mut shuffled: Vec<_> = self.names.iter().map(|name| whole[1].join(name)).collect();
        shuffle(&mut shuffled, round);
        forget(NAMES)?;
        Ok(vec![
            each("stat of standing files, each elsewhere", &elsewhere, stat)?,
            each("stat of a standing directory, random order", &shuffled, stat)?,
            each("stat of a standing directory, in order", &in_order, stat)?,
        ])
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

/// Directories of which a round looks at all files.
const WHOLE: usize = 2;
