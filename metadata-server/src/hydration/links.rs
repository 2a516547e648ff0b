//! Adds links, lists them and sets how they are followed.

use std::sync::Arc;

use millrace_protocol::{
    admin::{
        AddLink, AttributeSource, LinkOptions, LinkStatus, LinksReply, PathBytes, SetLinkOptions,
    },
    ahead::SetFetchPolicy,
    bucket::{QUIET_SECONDS_MAX, SetAutoExport, SetDeletePropagation},
    cluster::{Host, LinkMode},
    codec,
    metadata::NewNode,
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, LinkId};

use super::{
    environment::Environment,
    import::{Importer, broken, spec_of},
    trials,
    walk::{Viewpoint, child, inode, resolve},
};
use crate::{
    command::{self, Command, Outcome},
    namespace::{Body, Inode, tree},
    store::{
        View, keys,
        records::{self, LinkRecord},
    },
};

/// The most links of a cluster, and the most that are looked at; far beyond what anybody lists by
/// hand.
pub(super) const LINKS_MAX: usize = 10_000;

/// The longest list of all links, encoded with their directories. It travels in one message: to
/// every target without the directories, to operators beside the state of all else. What is left of
/// a message is for that, and for names that grow.
const LIST_LEN_MAX: usize = 768 * 1024;

/// Binds a directory, made if missing, to a bucket that this server and every target daemon reach.
///
/// # Errors
/// [`ErrorKind::BucketUnavailable`] or [`ErrorKind::BucketDenied`] with a sentence that names each
/// host that cannot reach it and why; [`ErrorKind::NoSpace`] when the list of all links would
/// become too long; what apply refuses.
pub async fn add<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    request: &AddLink,
) -> Result<LinkStatus, Failure> {
    let spec = spec_of(&request.bucket)?;
    let prefix = spec.prefix().to_owned();
    // Not in apply, which knew no such bound: logs that exist are applied as they were.
    check_room(list(environment).await?, request)?;
    trials::check_everywhere(environment, importer, &request.bucket, request.mode).await?;
    let directory = make_directory(environment, importer, &request.path).await?;
    let add =
        command::AddLink { directory, bucket: request.bucket.clone(), prefix, mode: request.mode };
    let added = environment.execute(Command::AddLink(add), true).await.map_err(|failure| {
        let path = request.path.escape_ascii();
        match failure.kind {
            ErrorKind::NotEmpty => Failure::new(
                failure.kind,
                format!("{path} is not empty: a link needs a directory of its own"),
            ),
            ErrorKind::InUse => nested(&request.path),
            _ => failure,
        }
    })?;
    let Outcome::Link(id) = added else { return Err(ErrorKind::Internal.into()) };
    if request.mode == LinkMode::ImportExport {
        // What an export stores beside the bytes shall come back.
        let attributes = Some(AttributeSource::Objects);
        let set = command::SetLinkOptions { link: id, refresh_seconds: None, attributes };
        environment.execute(Command::SetLinkOptions(set), true).await?;
    }
    let links = list(environment).await?;
    links.into_iter().find(|link| link.id == id).ok_or_else(|| ErrorKind::NotFound.into())
}

/// Links do not nest.
fn nested(path: &PathBytes) -> Failure {
    let text = format!("{} is part of a link already", path.escape_ascii());
    Failure::new(ErrorKind::InUse, text)
}

/// Refuses a link for which the list of all has no room.
pub(super) fn check_room(mut links: Vec<LinkStatus>, request: &AddLink) -> Result<(), Failure> {
    let count = links.len();
    let AddLink { path, bucket, mode } = request.clone();
    links.push(LinkStatus { id: LinkId(u32::MAX), path, bucket, mode });
    let len = codec::encode(&LinksReply { links }).len();
    if count < LINKS_MAX && len <= LIST_LEN_MAX {
        return Ok(());
    }
    let text = format!(
        "the list of all links has no room for one more: {count} are there, and it has at most \
         {LINKS_MAX} of them and {} KiB; link a directory above several prefixes of a bucket \
         instead of each",
        LIST_LEN_MAX / 1024
    );
    Err(Failure::new(ErrorKind::NoSpace, text))
}

/// All links.
///
/// # Errors
/// That the server is busy or shutting down.
pub async fn list<E: Environment>(environment: &E) -> Result<Vec<LinkStatus>, Failure> {
    environment.read(statuses).await
}

/// Sets how a link follows its bucket, and tells how it does.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the directory is not the top of a link.
pub async fn set_options<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    request: &SetLinkOptions,
) -> Result<LinkOptions, Failure> {
    let link = link_at(environment, importer, &request.path).await?;
    let SetLinkOptions { refresh_seconds, attributes, .. } = *request;
    if refresh_seconds.is_some() || attributes.is_some() {
        let set = command::SetLinkOptions { link, refresh_seconds, attributes };
        environment.execute(Command::SetLinkOptions(set), true).await?;
    }
    let known = environment.read(options).await?;
    known.into_iter().find(|known| known.id == link).ok_or_else(|| ErrorKind::NotFound.into())
}

/// How all links follow their buckets.
///
/// # Errors
/// When the store is broken.
pub fn options(view: &dyn View) -> Result<Vec<LinkOptions>, Failure> {
    let records = tree::scan::<LinkRecord>(view, &keys::links(), LINKS_MAX).map_err(broken)?;
    let options = |(key, record): (Vec<u8>, LinkRecord)| LinkOptions {
        id: link_id(&key, &keys::links()),
        refresh_seconds: record.refresh_seconds,
        attributes: record.attributes,
    };
    Ok(records.into_iter().map(options).collect())
}

/// Sets whether files below a link go to its bucket by themselves; tells which link it is.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a quiet time beyond [`QUIET_SECONDS_MAX`];
/// [`ErrorKind::NotFound`] when the directory is not the top of a link; [`ErrorKind::ReadOnly`]
/// with a sentence when the link does not export.
pub async fn set_auto_export<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    request: &SetAutoExport,
) -> Result<LinkId, Failure> {
    let quiet_seconds = request.quiet_seconds;
    if quiet_seconds.is_some_and(|seconds| seconds > QUIET_SECONDS_MAX) {
        let words = format!("the quiet time is at most {QUIET_SECONDS_MAX} seconds, a day");
        return Err(Failure::new(ErrorKind::InvalidArgument, words));
    }
    let link = link_at(environment, importer, &request.path).await?;
    let set = command::SetAutoExport { link, quiet_seconds };
    let done = environment.execute(Command::SetAutoExport(set), true).await;
    done.map(|_| link).map_err(does_not_export)
}

/// Sets what is fetched behind reads below a link; tells which link it is.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the directory is not the top of a link.
pub async fn set_fetch_policy<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    request: &SetFetchPolicy,
) -> Result<LinkId, Failure> {
    let link = link_at(environment, importer, &request.path).await?;
    let set = command::SetFetchPolicy { link, policy: request.policy };
    environment.execute(Command::SetFetchPolicy(set), true).await?;
    Ok(link)
}

/// Sets whether removals below a link reach its bucket; tells which link it is.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the directory is not the top of a link; [`ErrorKind::ReadOnly`]
/// with a sentence when the link does not export.
pub async fn set_delete_propagation<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    request: &SetDeletePropagation,
) -> Result<LinkId, Failure> {
    let link = link_at(environment, importer, &request.path).await?;
    let set = command::SetDeletePropagation { link, on: request.on };
    let done = environment.execute(Command::SetDeletePropagation(set), true).await;
    done.map(|_| link).map_err(does_not_export)
}

/// Says in words what apply says of a link that does not export.
fn does_not_export(failure: Failure) -> Failure {
    let words = "the link does not export: add it with --mode import-export";
    match failure.kind {
        ErrorKind::ReadOnly => Failure::new(ErrorKind::ReadOnly, words),
        _ => failure,
    }
}

/// The link whose top is at `path`.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the directory is not the top of a link.
pub(super) async fn link_at<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    path: &PathBytes,
) -> Result<LinkId, Failure> {
    let top = resolve(environment, importer, Viewpoint::OPERATOR, path).await?.id;
    let found = environment.read(move |view| top_of(view, top)).await?;
    found.ok_or_else(|| {
        let path = path.escape_ascii();
        Failure::new(ErrorKind::NotFound, format!("{path} is not the directory of a link"))
    })
}

/// The link whose top is at `path`, as it is recorded.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the directory is not the top of a link.
pub(super) async fn record_at<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    path: &PathBytes,
) -> Result<LinkRecord, Failure> {
    let link = link_at(environment, importer, path).await?;
    let query = environment.read(move |view| {
        let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        record.ok_or_else(|| ErrorKind::NotFound.into())
    });
    query.await
}

/// All links as a view shows them.
///
/// # Errors
/// When the store is broken.
pub fn statuses(view: &dyn View) -> Result<Vec<LinkStatus>, Failure> {
    let records = tree::scan::<LinkRecord>(view, &keys::links(), LINKS_MAX).map_err(broken)?;
    let status = |(key, record): (Vec<u8>, LinkRecord)| {
        let inode = tree::find(view, record.directory).map_err(broken)?;
        let path = inode.map(|inode| tree::path(view, &inode).map_err(broken)).transpose()?;
        Ok(LinkStatus {
            id: link_id(&key, &keys::links()),
            path: path.flatten().unwrap_or_default(),
            bucket: record.bucket,
            mode: record.mode,
        })
    };
    records.into_iter().map(status).collect()
}

/// What people call a target daemon.
pub(super) fn host_name(host: &Host) -> String {
    if host.name.is_empty() { host.id.to_string() } else { format!("target host {}", host.name) }
}

/// Walks down `path` and makes what is missing, as root; nothing in a link, whose bucket would get
/// it.
async fn make_directory<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    path: &PathBytes,
) -> Result<InodeId, Failure> {
    let mut at = inode(environment, InodeId::ROOT).await?;
    for name in tree::components(path)? {
        if !at.is_directory() {
            return Err(ErrorKind::NotDirectory.into());
        }
        importer.name(at.id, &name).await?;
        let known = child(environment, at.id, name.clone()).await?;
        if known.is_none() && shows_link(environment, &at).await? {
            return Err(nested(path));
        }
        at = match known {
            Some(child) => child,
            None => make_one(environment, at.id, name).await?,
        };
    }
    if at.is_directory() { Ok(at.id) } else { Err(ErrorKind::NotDirectory.into()) }
}

/// Whether a directory is part of a link.
async fn shows_link<E: Environment>(environment: &E, inode: &Inode) -> Result<bool, Failure> {
    let Body::Directory(body) = &inode.body else { return Ok(false) };
    let Some(link) = body.linked.as_ref().map(|linked| linked.link) else { return Ok(false) };
    let query = environment.read(move |view| {
        let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        Ok(record.is_some())
    });
    query.await
}

async fn make_one<E: Environment>(
    environment: &E,
    parent: InodeId,
    name: FileName,
) -> Result<Inode, Failure> {
    let reserved = environment.reserve_inodes(1).await?;
    let id = reserved.first().copied().ok_or(ErrorKind::Busy)?;
    let create = command::Create {
        caller: Caller { uid: 0, gid: 0, groups: Vec::new() },
        parent,
        name,
        node: NewNode::Directory,
        mode: 0o755,
        inode: id,
        seed: 0,
        open: None,
        exclusive: true,
    };
    environment.execute(Command::Create(create), false).await?;
    inode(environment, id).await
}

/// The link whose top this directory is.
fn top_of(view: &dyn View, directory: InodeId) -> Result<Option<LinkId>, Failure> {
    let records = tree::scan::<LinkRecord>(view, &keys::links(), LINKS_MAX).map_err(broken)?;
    let mut found = records.into_iter().filter(|(_, record)| record.directory == directory);
    Ok(found.next().map(|(key, _)| link_id(&key, &keys::links())))
}

/// The link of a key of the table that begins with `table`.
pub(super) fn link_id(key: &[u8], table: &[u8]) -> LinkId {
    let bytes = keys::after(key, table);
    LinkId(bytes.try_into().map_or(0, u32::from_be_bytes))
}
