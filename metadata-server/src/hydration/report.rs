//! Answers how a file or tree stands against its bucket, by asking the targets what they hold.

use std::{
    collections::{HashMap, HashSet},
    slice,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_protocol::{
    admin::{FileState, ShowState, StateReply},
    bucket::{FileReply, ShowFile},
    cluster::Map,
    target::{ContentName, Presence, Present},
};
use millrace_types::{ByteLen, ErrorKind, Failure, InodeId, TargetId};

use super::{
    environment::Environment,
    import::{Importer, broken, spec_of},
    spread::{Place, all_places_of},
    state::{self, Sums},
    walk::{Unlisted, Viewpoint, Walk, check, inode, may_list, resolve},
};
use crate::{
    namespace::{Body, FileBody, Inode, ObjectState, permission::Access, tree},
    store::{
        keys,
        records::{self, LinkRecord},
    },
};

/// How long one target may take to count.
pub(super) const PRESENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Targets that are asked at the same time.
pub(super) const TARGETS_AT_ONCE: usize = 64;

/// The state of the file or tree at a path, whose beginning is `top`. Directories below that the
/// caller may not read count as unlisted.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] when the caller may not read it or not search the way to it; a
/// target that does not answer.
pub async fn show<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    top: &[u8],
    request: &ShowState,
) -> Result<StateReply, Failure> {
    let caller = &request.caller;
    let top = resolve(environment, importer, Viewpoint { top, caller }, &request.path).await?;
    check(environment, caller, &top, Access::Read).await?;
    let mut sums = Sums::default();
    let mut unlisted = 0;
    let mut walk = Walk::new(top.id, Unlisted::Leave).seen_by(caller);
    let map = environment.map().await?;
    loop {
        let page = match walk.next(environment, importer).await {
            Ok(Some(page)) => page,
            Ok(None) => break,
            Err((_, failure)) if failure.kind == ErrorKind::PermissionDenied => {
                unlisted += 1;
                continue;
            }
            Err((_, failure)) => return Err(failure),
        };
        for inode in page.iter().filter(|inode| is_unlisted(inode)) {
            unlisted += u64::from(may_list(environment, caller, inode.id).await?);
        }
        count(environment, &map, page.into(), &mut sums).await?;
    }
    Ok(StateReply {
        state: sums.shared(),
        directory: top.is_directory(),
        size: sums.size(),
        hydrated: sums.here(),
        sums: if top.is_directory() { sums.to_vec() } else { Vec::new() },
        unlisted_directories: unlisted,
        origin: origin_of(environment, &top).await?,
    })
}

/// How long one target may take to count a single file: somebody waits for the answer.
const FILE_TIMEOUT: Duration = Duration::from_secs(5);

/// How one file stands, for a client that sees what is below `top`.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] when the caller may not read it; [`ErrorKind::Forbidden`]
/// outside of `top`; [`ErrorKind::InvalidArgument`] for what is no file; [`ErrorKind::Stale`] when
/// it is gone; [`ErrorKind::Internal`] when a target that may hold some of it does not answer.
pub async fn show_file<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    top: &[u8],
    request: &ShowFile,
) -> Result<FileReply, Failure> {
    let file = inode(environment, request.inode).await?;
    let Body::File(body) = &file.body else { return Err(ErrorKind::InvalidArgument.into()) };
    // One without names has no place, and whether this client has it open is not known here.
    if !top.is_empty() && file.links == 0 {
        return Err(ErrorKind::Forbidden.into());
    }
    if !top.is_empty() {
        let top = resolve(environment, importer, Viewpoint::OPERATOR, top).await?.id;
        let wanted = file.clone();
        let query =
            environment.read(move |view| tree::is_below(view, &wanted, top).map_err(broken));
        if !query.await? {
            return Err(ErrorKind::Forbidden.into());
        }
    }
    check(environment, &request.caller, &file, Access::Read).await?;
    let held = match request.counted && state::is_asked_for(body) {
        true => held_of(environment, &file).await?,
        false => Present { clean: ByteLen(file.size), ..Present::default() },
    };
    let (mut state, here) = state::of_file(file.size, body, &held);
    if unmarked(environment, slice::from_ref(&file)).await?.contains(&file.id) {
        state = FileState::Dirty;
    }
    let origin = origin_of(environment, &file).await?;
    Ok(FileReply { state, size: ByteLen(file.size), hydrated: ByteLen(here), origin })
}

/// What the targets that the file lies on hold of it. Asks each once.
async fn held_of<E: Environment>(environment: &E, file: &Inode) -> Result<Present, Failure> {
    let content = file.content().ok_or(ErrorKind::InvalidArgument)?;
    let name = ContentName { inode: content.inode, generation: content.generation };
    let map = environment.map().await?;
    let places = all_places_of(&map, &content.layout, file.size)?;
    let asked = stream::iter(places).map(|place| {
        let request = Presence { target: place.target, contents: vec![name] };
        async move {
            let reply = environment.ask(place.host, request, FILE_TIMEOUT).await;
            // Not to be repeated for as long as the target is away.
            reply.map_err(|failure| Failure {
                kind: ErrorKind::Internal,
                ..silent(place.target, &failure)
            })
        }
    });
    let mut replies = asked.buffer_unordered(TARGETS_AT_ONCE);
    let mut held = Present::default();
    while let Some(reply) = replies.try_next().await? {
        reply.present.iter().for_each(|part| state::add(&mut held, part));
    }
    Ok(held)
}

fn is_unlisted(inode: &Inode) -> bool {
    match &inode.body {
        Body::Directory(body) => body.linked.as_ref().is_some_and(|linked| linked.listed.is_none()),
        _ => false,
    }
}

/// Counts the files of one page.
async fn count<E: Environment>(
    environment: &E,
    map: &Map,
    page: Vec<Inode>,
    sums: &mut Sums,
) -> Result<(), Failure> {
    let files: Vec<(&Inode, &FileBody)> = page
        .iter()
        .filter_map(|inode| match &inode.body {
            Body::File(body) => Some((inode, body.as_ref())),
            _ => None,
        })
        .collect();
    let asked: Vec<ContentName> = files
        .iter()
        .filter(|(_, body)| state::is_asked_for(body))
        .map(|(inode, body)| ContentName { inode: inode.id, generation: body.generation })
        .collect();
    let present = presence(environment, map, asked).await?;
    let unmarked = unmarked(environment, &page).await?;
    for (inode, body) in files {
        let name = ContentName { inode: inode.id, generation: body.generation };
        let held = present.get(&name).copied().unwrap_or_default();
        let (mut state, here) = state::of_file(inode.size, body, &held);
        if unmarked.contains(&inode.id) {
            state = FileState::Dirty;
        }
        sums.count(state, inode.size, here);
    }
    Ok(())
}

/// Exported files of which the targets do not know yet that their bucket has them: nothing of them
/// can be released.
async fn unmarked<E: Environment>(
    environment: &E,
    inodes: &[Inode],
) -> Result<HashSet<InodeId>, Failure> {
    let is_exported = |inode: &&Inode| match &inode.body {
        Body::File(file) => file.state == ObjectState::Exported,
        _ => false,
    };
    let exported: Vec<_> = inodes.iter().filter(is_exported).map(|inode| inode.id).collect();
    if exported.is_empty() {
        return Ok(HashSet::new());
    }
    let query = environment.read(move |view| {
        let mut unmarked = HashSet::new();
        for id in exported {
            if view.get(&keys::export(id)).map_err(broken)?.is_some() {
                unmarked.insert(id);
            }
        }
        Ok(unmarked)
    });
    query.await
}

/// What all targets together hold of some contents.
pub(super) async fn presence<E: Environment>(
    environment: &E,
    map: &Map,
    contents: Vec<ContentName>,
) -> Result<HashMap<ContentName, Present>, Failure> {
    let mut total: HashMap<ContentName, Present> = HashMap::new();
    if contents.is_empty() {
        return Ok(total);
    }
    let places: Vec<_> =
        map.targets.iter().map(|target| Place { host: target.host, target: target.id }).collect();
    let asked = stream::iter(places).map(|place| {
        let request = Presence { target: place.target, contents: contents.clone() };
        async move {
            let reply = environment.ask(place.host, request, PRESENCE_TIMEOUT).await;
            reply.map_err(|failure| silent(place.target, &failure))
        }
    });
    let mut replies = asked.buffer_unordered(TARGETS_AT_ONCE);
    while let Some(reply) = replies.try_next().await? {
        if reply.present.len() != contents.len() {
            return Err(ErrorKind::Protocol.into());
        }
        for (name, part) in contents.iter().zip(&reply.present) {
            state::add(total.entry(*name).or_default(), part);
        }
    }
    Ok(total)
}

pub(super) fn silent(target: TargetId, failure: &Failure) -> Failure {
    Failure::new(failure.kind, format!("target {target} does not say what it holds: {failure}"))
}

async fn origin_of<E: Environment>(
    environment: &E,
    inode: &Inode,
) -> Result<Option<(String, String)>, Failure> {
    let Body::File(body) = &inode.body else { return Ok(None) };
    let Some(origin) = body.origin.clone() else { return Ok(None) };
    let link = origin.link;
    let query = environment
        .read(move |view| records::read::<LinkRecord>(view, &keys::link(link)).map_err(broken));
    let Some(record) = query.await? else { return Ok(None) };
    let spec = spec_of(&record.bucket)?;
    Ok(Some((spec.url_of(&origin.key), origin.tag)))
}
