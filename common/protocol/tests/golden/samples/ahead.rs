//! Messages about fetching before anybody asks.

use millrace_protocol::{
    ahead::{
        FetchAhead, FetchPoliciesReply, FetchPolicy, LinkFetches, ListFetchPolicies, Miss,
        ReportMisses, SetFetchPolicy,
    },
    session::Done,
    target::{ContentName, ItemResults},
};
use millrace_types::{ByteLen, ChunkIndex, ContentGeneration, InodeId, LinkId, TargetId};

use super::{Sample, pair};

pub(super) fn all() -> Vec<Sample> {
    let content = ContentName { inode: InodeId(7), generation: ContentGeneration(2) };
    let miss = Miss { content, chunk: ChunkIndex(3) };
    let fetches =
        LinkFetches { link: LinkId(3), policy: FetchPolicy::Ahead, files: 1_000, bytes: 1 << 30 };
    let set = SetFetchPolicy { path: b"/train".to_vec(), policy: FetchPolicy::Chunk };
    [
        pair(&ReportMisses { misses: vec![miss] }, &Done::default()),
        pair(
            &FetchAhead { target: TargetId([4; 8]), items: Vec::new() },
            &ItemResults { results: vec![Ok(ByteLen(1))] },
        ),
        pair(&set, &FetchPoliciesReply { links: vec![fetches] }),
        pair(&ListFetchPolicies {}, &FetchPoliciesReply { links: Vec::new() }),
    ]
    .into_iter()
    .flatten()
    .collect()
}
