//! Several things at once: writes and reads of different chunks while a checkpoint is written, on a
//! disk whose requests take their time, so that an end comes at any moment of any of them.

use std::ops::Range;

use anyhow::{Result, bail};
use futures::future::{join, join_all};
use millrace_runtime::Random;

use super::{
    chance::{below, percent},
    driver::World,
    model::{CHUNKS, Change, FILES, PAGE},
    operation::{Operation, random_range},
    subject::{Chunk, Found, Refused},
};

/// What goes on beside each other.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// A checkpoint, from the beginning to its end.
    checkpoint: bool,
    /// One after the other.
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    /// All at the same time, each in a chunk of its own.
    Together(Vec<Part>),
    Alone(Box<Operation>),
}

/// A write.
#[derive(Clone, Debug)]
struct Part {
    file: usize,
    chunk: usize,
    range: Range<usize>,
    durably: bool,
    /// Whether somebody reads the chunk meanwhile.
    is_read: bool,
}

/// A write with what it is made of.
struct Asked {
    part: Part,
    terms: Chunk,
    bytes: Vec<u8>,
    change: Change,
}

impl Beside {
    pub(crate) fn random(random: &Random) -> Self {
        let steps = (0..1 + below(random, 5)).map(|_| Step::random(random)).collect();
        Self { checkpoint: percent(random, 70), steps }
    }
}

impl Step {
    fn random(random: &Random) -> Self {
        let (file, chunk) = (below(random, FILES), below(random, CHUNKS));
        let alone = match random.within(0..16) {
            0 => Operation::Trim { file, size: below(random, CHUNKS * 64) * PAGE },
            1 => Operation::Reclaim { file },
            2 => Operation::Release { file, chunk },
            3 => Operation::Zero { file, chunk, range: random_range(random) },
            4 => Operation::Append { file, chunk, len: 1 + below(random, 3 * PAGE) },
            5 => Operation::Fill { file, chunk, block: 0, blocks: 1 + below(random, 4) },
            6 => Operation::Look { file, chunk },
            7 => Operation::Sync,
            _ => return Self::Together(parts(random)),
        };
        Self::Alone(Box::new(alone))
    }
}

fn parts(random: &Random) -> Vec<Part> {
    let mut places: Vec<(usize, usize)> =
        (0..FILES).flat_map(|file| (0..CHUNKS).map(move |chunk| (file, chunk))).collect();
    let part = |_| {
        let (file, chunk) = places.swap_remove(below(random, places.len()));
        let (durably, is_read) = (percent(random, 60), percent(random, 30));
        Part { file, chunk, range: random_range(random), durably, is_read }
    };
    (0..1 + below(random, 4)).map(part).collect()
}

impl World {
    pub(super) async fn beside(&mut self, beside: Beside) -> Result<()> {
        let starts = self.starts;
        self.subject.directory.set_delays(true);
        let checkpoint = beside.checkpoint.then(|| self.subject.begin_checkpoint());
        for step in beside.steps {
            self.note(&format!("beside: {step:?}"));
            match step {
                Step::Together(parts) => self.together(parts).await?,
                Step::Alone(operation) => Box::pin(self.apply(*operation)).await?,
            }
            if self.subject.directory.is_off() || self.starts != starts {
                break;
            }
        }
        if let Some(checkpoint) = checkpoint {
            let done = checkpoint.await;
            let is_disturbed = self.subject.directory.is_off() || self.starts != starts;
            match done {
                Ok(()) | Err(Refused::NoSpace) => {}
                Err(_) if is_disturbed => {}
                Err(refused) => bail!("a checkpoint is refused: {refused:?}"),
            }
        }
        self.subject.directory.set_delays(false);
        Ok(())
    }

    async fn together(&mut self, parts: Vec<Part>) -> Result<()> {
        let before = self.model.newest();
        let asked: Vec<Asked> = parts.into_iter().map(|part| self.ask(part)).collect();
        let answers = join_all(asked.iter().map(|asked| self.answer(asked))).await;
        let mut is_any_durable = false;
        for (asked, (done, seen)) in asked.into_iter().zip(answers) {
            let Asked { part: Part { file, chunk, durably, .. }, change, .. } = asked;
            match seen {
                None => {}
                Some(Ok(found)) => self.model.check_beside(file, chunk, &change, &found)?,
                Some(Err(refused)) => self.expect_off(Some(refused))?,
            }
            // Nothing is changed by these.
            if matches!(done, Err(Refused::NeedsFill(_) | Refused::Corrupt)) {
                continue;
            }
            if self.conclude(change, done)? && durably {
                self.model.promise_newest();
                is_any_durable = true;
            }
        }
        if is_any_durable {
            // With everything that was acknowledged before it was asked for.
            self.model.promise_through(before);
        }
        Ok(())
    }

    fn ask(&self, part: Part) -> Asked {
        let mut bytes = vec![0; part.range.len()];
        self.random.fill(&mut bytes);
        let change = self.model.write(part.file, part.chunk, part.range.start, &bytes);
        Asked { terms: self.model.chunk(part.file, part.chunk), part, bytes, change }
    }

    async fn answer(
        &self,
        asked: &Asked,
    ) -> (Result<(), Refused>, Option<Result<Vec<Found>, Refused>>) {
        let Asked { part, terms, bytes, .. } = asked;
        let (start, bytes) = (part.range.start, bytes.clone());
        let writing = async {
            match part.durably {
                true => self.subject.write_durably(*terms, start, bytes).await,
                false => self.subject.write(*terms, start, bytes).await,
            }
        };
        let reading = async {
            match part.is_read {
                true => Some(self.subject.look(*terms).await),
                false => None,
            }
        };
        join(writing, reading).await
    }
}
