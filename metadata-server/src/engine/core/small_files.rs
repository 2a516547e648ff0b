//! How large new files may be that live in their inodes: the metadata server's disk, and the time
//! that a snapshot takes, are for names first.

use millrace_types::ByteLen;

use super::Core;

impl Core {
    /// Up to how many bytes new files may have that live in their inodes, in a directory that
    /// allows it up to `wanted`. Those beyond a page have to go to the targets while all metadata
    /// is large already, or its disk is short of room.
    pub fn inline_bytes_max(&mut self, wanted: u32) -> u32 {
        if wanted <= PAGE_BYTES {
            return wanted;
        }
        let free = self.settings.files.free(&self.settings.dir).ok();
        let metadata = self.snapshots.metadata_len(&self.log);
        let (most, reserve) = (self.settings.small_files_bytes, self.room.reserve());
        let had_room = self.small_files_have_room;
        let has_room = has_room(had_room, metadata, most, free, reserve);
        self.small_files_have_room = has_room;
        if has_room != had_room {
            let (metadata, free) = (ByteLen(metadata), free.map(ByteLen));
            match has_room {
                true => tracing::info!(%metadata, ?free, "small files live in their inodes again"),
                false => {
                    tracing::info!(%metadata, ?free, "new files beyond 4 KiB go to the targets")
                }
            }
        }
        if has_room { wanted } else { PAGE_BYTES }
    }

    /// Whether the last who asked was told that files beyond a page go to the targets.
    pub fn are_small_files_limited(&self) -> bool {
        !self.small_files_have_room
    }
}

/// Whether there is room for more than pages. A disk that does not say counts as one that has room.
/// Where there was none, a quarter more is wanted: what snapshots take comes and goes.
fn has_room(
    had_room: bool,
    metadata: u64,
    metadata_max: u64,
    free: Option<u64>,
    reserve: u64,
) -> bool {
    let needed = (SNAPSHOTS * metadata).max(RESERVES * reserve);
    let (metadata, needed) = match had_room {
        true => (metadata, needed),
        false => (metadata + metadata / 4, needed + needed / 4),
    };
    metadata < metadata_max && free.is_none_or(|free| free >= needed)
}

/// What a file takes at a target at least: up to here nothing is saved by sending it there.
const PAGE_BYTES: u32 = 4096;

/// Room for the snapshot that is taken next, before the oldest is removed, and for what is made
/// until then.
const SNAPSHOTS: u64 = 2;

/// A quarter of a small disk, 4 GiB of a large one.
const RESERVES: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_is_beyond_a_page_needs_room_for_snapshots_and_a_part_of_the_disk() {
        let small = |metadata, free| has_room(true, metadata, 4 * GIB, free, GIB / 4);
        assert!(small(0, Some(4 * GIB)));
        assert!(!small(0, Some(4 * GIB - 1)));
        assert!(small(3 * GIB, Some(6 * GIB)));
        assert!(!small(3 * GIB, Some(6 * GIB - 1)));
        assert!(!small(4 * GIB, Some(100 * GIB)));
        assert!(small(GIB, None));
        assert!(!has_room(true, 0, 0, Some(100 * GIB), GIB / 4), "never, by the settings");
    }

    #[test]
    fn room_that_comes_and_goes_with_a_snapshot_does_not_count() {
        let again = |metadata, free| has_room(false, metadata, 4 * GIB, Some(free), GIB / 4);
        assert!(!again(0, 4 * GIB) && again(0, 5 * GIB));
        assert!(!again(7 * GIB / 2, 100 * GIB) && again(3 * GIB, 100 * GIB));
    }
}
