//! The four copies of index roots: two generations, twice each.

use millrace_types::Crc32c;

use super::{
    flipped::flipped,
    report::{Kind, Report, Severity},
};
use crate::{
    format::{
        FormatError,
        free_map::REGION_PAGES,
        root::{ROOT_SLOTS, RootRecord},
        superblock::Superblock,
    },
    image::{PAGE, PageSource},
};

const REMEDY: &str = "the daemon's next checkpoints write it anew";

/// What was found in a slot.
enum Slot {
    Sound(RootRecord),
    Bad {
        text: String,
        /// What a write leaves that was cut off is not like that.
        is_rot: bool,
    },
}

/// The roots as they were found.
pub(super) struct Roots {
    first: u64,
    slots: Vec<Slot>,
    /// The one that counts.
    pub(super) newest: Option<RootRecord>,
}

impl Roots {
    pub(super) fn read(source: &dyn PageSource, superblock: &Superblock) -> Self {
        let first = superblock.layout.roots;
        let slots: Vec<Slot> = (first..first + ROOT_SLOTS)
            .map(|page| match source.pages_at(page, 1) {
                Ok(bytes) => slot(&bytes, superblock),
                Err(error) => {
                    Slot::Bad { text: format!("the disk cannot read it: {error}"), is_rot: true }
                }
            })
            .collect();
        let sound = slots.iter().filter_map(|slot| match slot {
            Slot::Sound(root) => Some(root),
            Slot::Bad { .. } => None,
        });
        // Of equals the first, as the daemon does.
        let newest = sound.reduce(|one, other| match other.generation > one.generation {
            true => other,
            false => one,
        });
        let newest = newest.cloned();
        Self { first, slots, newest }
    }

    /// Says what is wrong. A stop while a root was being written leaves one that is old or cut off,
    /// unless the daemon ended in order.
    pub(super) fn report(&self, ended_in_order: bool, report: &Report<'_>) {
        let Some(newest) = &self.newest else {
            for (page, slot) in (self.first..).zip(&self.slots) {
                if let Slot::Bad { text, .. } = slot {
                    let text = format!("a copy of an index root is damaged: {text}");
                    let remedy = "none of the four is left: the index is lost; begin anew with a \
                                  blank target, what is in the bucket is fetched again";
                    report.damage(Kind::Root, page, text, remedy);
                }
            }
            return;
        };
        let in_pair = |slot| RootRecord::slot(newest.generation) == slot / 2 * 2;
        for (at, slot) in (0..).zip(&self.slots) {
            let due = if in_pair(at) { newest.generation } else { newest.generation - 1 };
            if due == 0 {
                // The first generation has none before it.
                continue;
            }
            let (text, is_rot) = match slot {
                Slot::Sound(root) if root.generation == due => {
                    if !in_pair(at) || root == newest {
                        continue;
                    }
                    let text = "a copy of the newest index root contradicts the other copy";
                    (text.to_owned(), true)
                }
                Slot::Sound(root) => {
                    let found = root.generation;
                    let text = format!(
                        "a copy of an index root is of generation {found}, where {due} belongs"
                    );
                    (text, false)
                }
                Slot::Bad { text, is_rot } => {
                    (format!("a copy of index root {due} is damaged: {text}"), *is_rot)
                }
            };
            let severity = match is_rot || ended_in_order {
                true => Severity::Damage,
                false => Severity::Note,
            };
            report.remark(severity, Kind::Root, Some(self.first + at), text, REMEDY);
        }
    }
}

fn slot(bytes: &[u8], superblock: &Superblock) -> Slot {
    let error = match RootRecord::decode(bytes, superblock.target) {
        Ok(root) => match misplaced_segment(&root, superblock) {
            None => return Slot::Sound(root),
            Some(text) => return Slot::Bad { text, is_rot: true },
        },
        Err(error) => error,
    };
    let checksum = bytes[8..12].first_chunk().expect("four bytes");
    let flip = flipped(&bytes[12..PAGE], Crc32c(u32::from_le_bytes(*checksum)));
    match flip {
        Some(flip) if matches!(error, FormatError::Checksum(_)) => {
            Slot::Bad { text: format!("{error} ({flip}, from byte 12 on)"), is_rot: true }
        }
        // Whole by its checksum, or with its magic number gone alone: no torn write.
        _ if flip.is_some() || Crc32c::of(&bytes[12..PAGE]).0.to_le_bytes() == *checksum => {
            Slot::Bad { text: error.to_string(), is_rot: true }
        }
        _ => Slot::Bad { text: error.to_string(), is_rot: false },
    }
}

/// Nodes lie in the regions, and nowhere else.
fn misplaced_segment(root: &RootRecord, superblock: &Superblock) -> Option<String> {
    let layout = superblock.layout;
    let end = layout.regions + u64::from(layout.region_count()) * u64::from(REGION_PAGES);
    let outside = |segment: &&crate::format::root::Segment| {
        segment.first < layout.regions || segment.end() > end
    };
    let segment = root.segments.iter().find(outside)?;
    Some(format!(
        "it names pages {} to {} for nodes, which are not in the regions",
        segment.first,
        segment.end() - 1
    ))
}
