//! Answers how a file or tree stands against its bucket, by asking the targets what they hold.

use std::{collections::HashSet, slice, sync::Arc};

use millrace_protocol::{
    admin::{FileState, ShowState, StateReply},
    bucket::{FileReply, ShowFile},
    known_state::{KnownStateReply, SilentTarget},
    target::Present,
};
use millrace_types::{ByteLen, ErrorKind, Failure, InodeId};

use super::{
    environment::Environment,
    holdings::{Inquiry, Patience},
    import::{Importer, broken, spec_of},
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

/// The state of the file or tree at a path, whose beginning is `top`, as far as the targets that
/// answer know it. Directories below that the caller may not read count as unlisted.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] when the caller may not read it or not search the way to it; of
/// a single file whose state depends on it, that a target does not answer.
pub async fn show_known<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    top: &[u8],
    request: &ShowState,
) -> Result<KnownStateReply, Failure> {
    let caller = &request.caller;
    let top = resolve(environment, importer, Viewpoint { top, caller }, &request.path).await?;
    check(environment, caller, &top, Access::Read).await?;
    let mut sums = Sums::default();
    let mut unlisted = 0;
    let mut walk = Walk::new(top.id, Unlisted::Leave).seen_by(caller);
    let mut inquiry = Inquiry::new(environment, Patience::REPORT).await?;
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
        count(environment, &mut inquiry, page.into(), &mut sums).await?;
    }
    let (unknown_files, unknown_size) = sums.unknown();
    let silent = inquiry.silent_targets();
    if !top.is_directory()
        && unknown_files > 0
        && let Some(target) = silent.first()
    {
        return Err(unanswered(target));
    }
    let state = StateReply {
        state: sums.shared(),
        directory: top.is_directory(),
        size: sums.size(),
        hydrated: sums.here(),
        sums: if top.is_directory() { sums.to_vec() } else { Vec::new() },
        unlisted_directories: unlisted,
        origin: origin_of(environment, &top).await?,
    };
    Ok(KnownStateReply { state, unknown_files, unknown_size, silent })
}

/// The same for who expects all of it.
///
/// # Errors
/// As [`show_known`]; that a target does not answer which may hold some of it.
pub async fn show<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    top: &[u8],
    request: &ShowState,
) -> Result<StateReply, Failure> {
    let known = show_known(environment, importer, top, request).await?;
    match known.silent.first() {
        None => Ok(known.state),
        Some(target) => Err(unanswered(target)),
    }
}

fn unanswered(silent: &SilentTarget) -> Failure {
    let SilentTarget { target, reason, .. } = silent;
    let words = format!("target {target} does not say what it holds: {reason}");
    Failure::new(ErrorKind::Unavailable, words)
}

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
        true => {
            let mut inquiry = Inquiry::new(environment, Patience::FILE).await?;
            inquiry.held_of(environment, &file).await.map_err(for_good)?
        }
        false => Present { clean: ByteLen(file.size), ..Present::default() },
    };
    let (mut state, here) = state::of_file(file.size, body, &held);
    if unmarked(environment, slice::from_ref(&file)).await?.contains(&file.id) {
        state = FileState::Dirty;
    }
    let origin = origin_of(environment, &file).await?;
    Ok(FileReply { state, size: ByteLen(file.size), hydrated: ByteLen(here), origin })
}

/// What is not to be repeated for as long as a target is away.
fn for_good(failure: Failure) -> Failure {
    Failure { kind: ErrorKind::Internal, ..failure }
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
    inquiry: &mut Inquiry,
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
    let asked: Vec<&Inode> = files
        .iter()
        .filter(|(_, body)| state::is_asked_for(body))
        .map(|(inode, _)| *inode)
        .collect();
    let held = inquiry.held(environment, &asked).await;
    let unmarked = unmarked(environment, &page).await?;
    for (inode, body) in files {
        let held = held.get(&inode.id).copied().unwrap_or_default();
        let (told, here) = state::of_file(inode.size, body, &held.present);
        let known = match unmarked.contains(&inode.id) {
            true => Some(FileState::Dirty),
            false if held.silent.is_some() => state::known(inode.size, body),
            false => Some(told),
        };
        match known {
            Some(state) => sums.count(state, inode.size, here),
            None => sums.count_unknown(inode.size, here),
        }
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

/// URL and tag of the object that a file came from or went to.
///
/// # Errors
/// That the server is busy or shutting down.
pub(super) async fn origin_of<E: Environment>(
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
