//! Messages about what targets may drop.

use millrace_protocol::{
    release::{AskRelease, AskReleaseReply, ListPins, PinReply, PinsReply, ReleaseAnswer, SetPin},
    target::ContentName,
};
use millrace_types::{ContentGeneration, InodeId};

use super::{Sample, caller, pair};

pub(super) fn all() -> Vec<Sample> {
    use ReleaseAnswer::{InUse, MayGo, Pinned, Unknown, Unsaved};
    let content = ContentName { inode: InodeId(0x1_0000_0001), generation: ContentGeneration(5) };
    [
        pair(
            &AskRelease { contents: vec![content] },
            &AskReleaseReply { answers: vec![MayGo, Unsaved, InUse, Pinned, Unknown] },
        ),
        pair(
            &SetPin { caller: caller(), path: b"/train/cat".to_vec(), pinned: true },
            &PinReply { changed: true, above: vec![b"/train".to_vec()] },
        ),
        pair(
            &ListPins { after: Some(InodeId(7)) },
            &PinsReply { pins: vec![(InodeId(9), b"/train/cat".to_vec())], more: true },
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}
