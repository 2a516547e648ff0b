//! Files that clients make by themselves, and tell of when they have written them.

use millrace_protocol::{
    capability::{Capability, Content, Rights},
    delegation::{
        CONTENTS_MAX, DeclareDelegations, Delegate, Delegated, Delegation, NewFile,
        PUBLISHED_BYTES_MAX, PUBLISHED_MAX, PublishFiles, PublishedFile, PublishedFiles,
    },
    lease::MadeName,
    metadata::NewNode,
    session::Done,
};
use millrace_types::{ContentGeneration, ErrorKind, Failure, InodeId, Layout, WriteEpoch};

use super::{
    Client, Step, broken,
    create::{has_groups, made, reused, seed},
    kept_change::shown,
    show_again, show_without_bytes,
};
use crate::{
    apply,
    command::{Command, Create, Outcome, Publish, PublishInline},
    engine::Core,
    namespace::{Body, Inode, acl::List, tree},
    store::{StoreError, View},
};

/// Gives the session the right to make files in a directory, with contents for some.
///
/// # Errors
/// [`ErrorKind::NotDirectory`], [`ErrorKind::InvalidArgument`], [`ErrorKind::SessionGone`].
pub fn delegate(
    core: &mut Core,
    client: &Client,
    request: &Delegate,
) -> Result<Step<Delegated>, Failure> {
    client.own_session(core, request.session)?;
    if !(1..=CONTENTS_MAX).contains(&request.contents_max) {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let directory = client.enter(core, request.directory)?;
    let nothing = Ok(Step::Done(Delegated { delegation: None }));
    let defaults = directory.directory()?.defaults;
    // Without a target no file has a place, which the server tells whoever makes one.
    if !has_groups(core, defaults.pool) || !may_be_delegated(core, client, &directory)? {
        return nothing;
    }
    let now = core.now();
    if !core.leases.delegate(request.session, directory.id, now) {
        return nothing;
    }
    let ids: Vec<_> =
        (0..request.contents_max).map(|_| core.new_inode_id()).collect::<Result<_, _>>()?;
    let layouts = apply::layouts(core.view(), &defaults, ids.iter().map(|id| seed(*id)));
    let layouts = layouts.map_err(|error| core.failure(error))?;
    let sign = |(&inode, layout)| {
        let content = Content {
            inode,
            generation: FIRST.0,
            write_epoch: FIRST.1,
            layout,
            origin: None,
            origin_length: 0,
            sparse: false,
        };
        core.keyring().capability(Rights::ReadWrite, request.session, content)
    };
    let contents = ids.iter().zip(layouts).map(sign).collect::<Result<_, _>>()?;
    core.leases.handle_given(directory.id, ids);
    let is_known = core.file_system()?.feature_level >= apply::INLINE_LEVEL;
    let delegation = Delegation {
        directory: directory.attributes(),
        contents,
        inline_bytes_max: if is_known {
            core.inline_bytes_max(defaults.inline_bytes_max)
        } else {
            0
        },
    };
    Ok(Step::Done(Delegated { delegation: Some(delegation) }))
}

/// Whether files in a directory are made in the plain way, so that a client can do it by itself: it
/// knows neither buckets nor access control lists, nor what its certificate restricts it to.
fn may_be_delegated(core: &mut Core, client: &Client, directory: &Inode) -> Result<bool, Failure> {
    if client.subtree.is_some() || client.squash_root {
        return Ok(false);
    }
    if is_below_link(core.view(), directory).map_err(|error| broken(core, error))? {
        return Ok(false);
    }
    for list in [List::Access, List::Default] {
        let found = list.read(core.view(), directory).map_err(|error| broken(core, error))?;
        if found.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a directory lies below a link, or so deep that nobody asks: one whose name no key can
/// have shows no link, nor does what is below it, and all of that goes with the link.
fn is_below_link(view: &dyn View, directory: &Inode) -> Result<bool, StoreError> {
    let mut at = directory.clone();
    for _ in 0..LEVELS_MAX {
        if let Body::Directory(body) = &at.body
            && body.linked.is_some()
        {
            return Ok(true);
        }
        let Some(parent) = at.parent else { return Ok(false) };
        let Some(above) = tree::find(view, parent.directory)? else { return Ok(false) };
        at = above;
    }
    Ok(true)
}

/// Takes delegations over that a session has from before the server was restarted, with files that
/// it has not published.
///
/// # Errors
/// [`ErrorKind::Stale`] where the client speaks of another life of the server, or has listened in
/// this one already; [`ErrorKind::SessionGone`].
pub fn declare(
    core: &mut Core,
    client: &Client,
    request: &DeclareDelegations,
) -> Result<Step<Done>, Failure> {
    client.own_session(core, request.session)?;
    if request.directories.len() > DECLARED_MAX {
        return Err(Failure::new(ErrorKind::InvalidArgument, "too many directories"));
    }
    let now = core.now();
    let is_this_life = request.incarnation == core.incarnation();
    for &directory in &request.directories {
        if is_this_life && !may_have_been_delegated(core, client, directory)? {
            continue;
        }
        if !is_this_life || !core.leases.declare_delegation(request.session, directory, now) {
            let text = "what was made and not published is not the session's alone any more";
            return Err(Failure::new(ErrorKind::Stale, text));
        }
    }
    Ok(Step::Done(Done::default()))
}

/// Whether a client can have had a directory to itself.
fn may_have_been_delegated(
    core: &mut Core,
    client: &Client,
    directory: InodeId,
) -> Result<bool, Failure> {
    if client.subtree.is_some() || client.squash_root {
        return Ok(false);
    }
    match client.enter(core, directory) {
        Ok(found) => Ok(found.is_directory()),
        Err(Failure {
            kind: ErrorKind::Disk | ErrorKind::NoSpace | ErrorKind::Internal, ..
        }) => Err(ErrorKind::Busy.into()),
        Err(_) => Ok(false),
    }
}

/// Makes files that clients have opened by themselves.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for more than [`PUBLISHED_MAX`]; [`ErrorKind::SessionGone`]. What
/// a file is refused with is in its place of the answer.
pub fn publish(
    core: &mut Core,
    client: &Client,
    request: &PublishFiles,
) -> Result<Step<PublishedFiles>, Failure> {
    client.own_session(core, request.session)?;
    if request.files.len() > PUBLISHED_MAX {
        return Err(Failure::new(ErrorKind::InvalidArgument, "too many files for one request"));
    }
    let (mut files, mut bytes) = (Vec::with_capacity(request.files.len()), 0);
    for file in &request.files {
        if file.operation.session != request.session {
            return Err(ErrorKind::InvalidArgument.into());
        }
        files.push(match publish_one(core, client, file) {
            Ok(answer) => {
                bytes += inline_len(&answer);
                // It is remembered that it is made; asked again, it is in an answer of its own.
                match bytes > PUBLISHED_BYTES_MAX && !files.is_empty() {
                    true => PublishedFile::Refused(ErrorKind::Busy.into()),
                    false => answer,
                }
            }
            // The whole request waits and is tried again; what was made is remembered.
            Err(failure) if core.waits() => return Err(failure),
            Err(failure) => PublishedFile::Refused(failure),
        });
    }
    Ok(Step::Done(PublishedFiles { files }))
}

/// The bytes that an answer repeats.
fn inline_len(answer: &PublishedFile) -> usize {
    match answer {
        PublishedFile::Made(made) => made.reply.inline.as_ref().map_or(0, Vec::len),
        PublishedFile::MadeInline(_) | PublishedFile::Refused(_) => 0,
    }
}

/// The answer for a file that was made before. What was sent with it is not sent back.
fn published(mut made: MadeName, file: &NewFile) -> PublishedFile {
    if file.inline.is_none() || made.reply.inline != file.inline {
        return PublishedFile::Made(Box::new(made));
    }
    made.reply.inline = None;
    PublishedFile::MadeInline(Box::new(made))
}

fn publish_one(core: &mut Core, client: &Client, file: &NewFile) -> Result<PublishedFile, Failure> {
    client.own(core, file.operation)?;
    let session = file.operation.session;
    let place = (file.parent, &file.name);
    let inode = match made(core, file.operation)? {
        Some(inode) => inode,
        None => {
            let Content { inode, layout, .. } = given(core, file)?;
            let parent = client.enter(core, file.parent)?;
            // Else under another number, before its maker gave that one up.
            if !is_made(core, parent.id, file, inode)? {
                let inode = make(core, client, file, (parent.id, inode, layout))?;
                let reply = show_without_bytes(core, client, &inode, Some(session))?;
                let made = Box::new(shown(core, client, session, place, reply)?);
                return Ok(match file.inline {
                    Some(_) => PublishedFile::MadeInline(made),
                    None => PublishedFile::Made(made),
                });
            }
            inode
        }
    };
    let reply = show_again(core, client, inode, Some(session))?;
    Ok(published(shown(core, client, session, place, reply)?, file))
}

/// Makes a file with an id that its maker was given for it.
fn make(
    core: &mut Core,
    client: &Client,
    file: &NewFile,
    (parent, inode, layout): (InodeId, InodeId, Layout),
) -> Result<Inode, Failure> {
    let session = file.operation.session;
    if core.leases.is_undeclared(session) {
        let text = "the session has not declared what it has from before the restart";
        return Err(Failure::new(ErrorKind::Busy, text));
    }
    if !core.leases.admits(parent, session, inode) {
        let text = "the session has no delegation of the directory with this id";
        return Err(Failure::new(ErrorKind::Forbidden, text));
    }
    let create = Create {
        caller: client.caller(&file.caller),
        parent,
        name: file.name.clone(),
        node: NewNode::Regular,
        mode: file.mode,
        inode,
        seed: seed(inode),
        open: Some(session),
        exclusive: true,
    };
    let NewFile { made_at, end, written_at, .. } = *file;
    let publish = Publish { create, layout, made_at, end, written_at };
    let command = match &file.inline {
        Some(bytes) => {
            Command::PublishInline(Box::new(PublishInline { publish, bytes: bytes.clone() }))
        }
        None => Command::Publish(Box::new(publish)),
    };
    let Outcome::Inode(inode) = core.execute(Some(file.operation), command)? else {
        return Err(reused());
    };
    let now = core.now();
    core.leases.handle_published(parent, inode, now);
    tree::inode(core.view(), inode).map_err(|error| core.failure(error))
}

/// Whether the name is that of the inode already, whose id nobody else was ever given.
fn is_made(
    core: &mut Core,
    parent: InodeId,
    file: &NewFile,
    inode: InodeId,
) -> Result<bool, Failure> {
    let entry = tree::entry(core.view(), parent, &file.name);
    let entry = entry.map_err(|error| broken(core, error))?;
    Ok(entry.is_some_and(|entry| entry.inode == inode))
}

/// The content that a delegation gave for a file.
fn given(core: &mut Core, file: &NewFile) -> Result<Content, Failure> {
    let Capability { rights, session, content } = core.keyring().verified(&file.content)?;
    let is_first = (content.generation, content.write_epoch) == FIRST && content.origin.is_none();
    if session != file.operation.session || rights != Rights::ReadWrite || !is_first {
        let text = "this is no capability for a file that does not exist yet";
        return Err(Failure::new(ErrorKind::Forbidden, text));
    }
    Ok(content.checked()?)
}

/// Of a new file.
const FIRST: (ContentGeneration, WriteEpoch) = (ContentGeneration(1), WriteEpoch(1));

/// Deeper directories are not delegated: each level is one more look at the store.
const LEVELS_MAX: usize = 256;

/// Directories that a session declares at most: as many as a mount watches.
const DECLARED_MAX: usize = 1024;
