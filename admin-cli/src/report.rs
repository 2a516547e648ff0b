//! The JSON that commands print. Field names are promised in `docs/cli.md`: they may be added to,
//! never renamed or removed.
//!
//! Units stand in the names: `_bytes`; times are RFC 3339 in UTC. Paths are those of the file
//! system, from its root, unless the command was given a path: then it is repeated as it was given.

use millrace_protocol::{
    admin::{
        AttributeSource, ClusterStatusReply, FileState, Health, Job, JobFailure, JobKind, JobState,
        LayoutReply, LinkOptions, LinkStatus, Removal, TargetState,
    },
    ahead::LinkFetches,
    bucket::{AutoExport, DeletePropagation},
    cluster::LinkMode,
    known_state::KnownStateReply,
    refresh::RefreshInterval,
    requests::{BucketRequests, RequestsReply},
};
use serde::Serialize;

use crate::output::{path_text, subject_text, time_text};

mod bucket;
mod detail;
mod fsck;
mod pace;
mod pin;
mod resolution;
mod selection;
mod target;
mod wait;

pub(crate) use bucket::{
    AutoExportReport, ConflictReport, FetchReport, HostCheckReport, LeftOutReport, LinkCheckReport,
    PropagationReport, RefreshReport, RemovalReport,
};
pub(crate) use detail::{CountsReport, DirectoriesReport, EarlierLook};
pub(crate) use fsck::{CheckReport, CountReport};
pub(crate) use pace::{Counts, PaceReport};
pub(crate) use pin::{PinReport, PinnedReport};
pub(crate) use resolution::{ResolutionsReport, ResolveReport, ResolvedReport};
pub(crate) use selection::{JobOptionsReport, SelectionReport};
pub(crate) use target::{
    DetailReport, DrainReport, FindingReport, LossReport, ScrubReport, TargetDetailReport,
    TargetScrubReport, TargetShowReport,
};
pub(crate) use wait::WaitReport;

/// What `status` prints.
#[derive(Serialize, Debug)]
pub(crate) struct StatusReport {
    /// `healthy`, `degraded` or `unreachable`.
    pub(crate) health: &'static str,
    /// What is wrong, one sentence each.
    pub(crate) problems: Vec<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) servers: Vec<ServerReport>,
    pub(crate) inodes: u64,
    pub(crate) reclaim_entries: u64,
    pub(crate) targets: Vec<TargetReport>,
    pub(crate) sessions: Vec<SessionReport>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) jobs: Vec<JobReport>,
}

/// A metadata server.
#[derive(Serialize, Debug)]
pub(crate) struct ServerReport {
    pub(crate) address: String,
    pub(crate) role: &'static str,
    /// `online` or `unreachable`.
    pub(crate) state: &'static str,
    pub(crate) version: Option<String>,
    pub(crate) started: Option<String>,
    pub(crate) log_applied: Option<u64>,
    pub(crate) log_synced: Option<u64>,
    pub(crate) log_size_bytes: Option<u64>,
}

/// A target.
#[derive(Serialize, Debug)]
pub(crate) struct TargetReport {
    pub(crate) id: String,
    /// `joining`, `online`, `suspect` or `offline`.
    pub(crate) state: &'static str,
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) host: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) groups: u32,
    pub(crate) bad_blocks: u64,
    pub(crate) heard: String,
}

/// A client's session.
#[derive(Serialize, Debug)]
pub(crate) struct SessionReport {
    pub(crate) id: u64,
    pub(crate) host: String,
    pub(crate) expires: String,
    pub(crate) write_opens: u32,
}

/// A link.
#[derive(Serialize, Debug)]
pub(crate) struct LinkReport {
    pub(crate) path: String,
    pub(crate) url: String,
    pub(crate) id: u32,
    /// `read-only`, `import` or `import-export`.
    pub(crate) mode: &'static str,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) credentials: Option<String>,
    /// How it follows its bucket; not part of `status`.
    #[serde(flatten)]
    pub(crate) options: Option<LinkOptionsReport>,
    /// How it exports by itself, if it does; not part of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auto_export: Option<AutoExportReport>,
    /// What is fetched behind reads; not part of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fetch: Option<FetchReport>,
    /// What its bucket was asked, by all links into it; of `link list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<CountsReport>,
    /// Daemons whose requests are missing in these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) requests_without: Vec<String>,
    /// How removals reach its bucket, if they do; not part of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) propagate_deletes: Option<PropagationReport>,
    /// How it is listed again by itself, if it is; not part of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refresh: Option<RefreshReport>,
    /// How it is being removed, if it is; not part of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) removal: Option<RemovalReport>,
}

/// How a link follows its bucket.
#[derive(Serialize, Debug)]
pub(crate) struct LinkOptionsReport {
    /// 0: only on command.
    pub(crate) refresh_seconds: u32,
    /// `listing` or `objects`.
    pub(crate) attributes: &'static str,
}

/// A job.
#[derive(Serialize, Debug)]
pub(crate) struct JobReport {
    pub(crate) id: u64,
    /// `import`, `hydrate`, `release` or `export`.
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    /// `queued`, `running`, `succeeded`, `failed` or `cancelled`.
    pub(crate) state: &'static str,
    pub(crate) files_done: u64,
    pub(crate) files_total: u64,
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
    /// How many files failed.
    pub(crate) errors: u64,
    /// The first of them.
    pub(crate) failures: Vec<FailureReport>,
    pub(crate) started: String,
    pub(crate) ended: Option<String>,
    /// What `job show` tells of a job that does not do all of its tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) selection: Option<SelectionReport>,
    /// What `job show` tells of a job that is done in some way of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) options: Option<JobOptionsReport>,
    /// What its work asked buckets: of `job show`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<CountsReport>,
    /// The buckets that it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) waits: Vec<WaitReport>,
    /// How far each directory is, where that was asked for.
    #[serde(flatten)]
    pub(crate) directories: Option<DirectoriesReport>,
    /// How fast it is: of `job show`, while it runs.
    #[serde(flatten)]
    pub(crate) pace: Option<PaceReport>,
}

/// Why a job could not do one file.
#[derive(Serialize, Debug)]
pub(crate) struct FailureReport {
    pub(crate) path: String,
    pub(crate) error: String,
}

/// What `state` prints.
#[derive(Serialize, Debug)]
pub(crate) struct StateReport {
    pub(crate) path: String,
    /// The file's state; of a directory the one that all its files share, else null.
    pub(crate) state: Option<&'static str>,
    pub(crate) size_bytes: u64,
    pub(crate) hydrated_bytes: u64,
    pub(crate) directory: bool,
    /// Of a directory: files and bytes of each state. Of a file: empty.
    pub(crate) states: Vec<StateSumReport>,
    pub(crate) unlisted_directories: u64,
    /// Files in no state, since silent targets did not tell what they hold of them.
    pub(crate) unknown_files: u64,
    pub(crate) unknown_bytes: u64,
    pub(crate) silent_targets: Vec<SilentTargetReport>,
    pub(crate) origin: Option<OriginReport>,
}

/// A target that did not tell what it holds.
#[derive(Serialize, Debug)]
pub(crate) struct SilentTargetReport {
    pub(crate) id: String,
    /// Files that may lie on it, at least in part.
    pub(crate) files: u64,
    pub(crate) error: String,
}

/// Files of one state.
#[derive(Serialize, Debug)]
pub(crate) struct StateSumReport {
    pub(crate) state: &'static str,
    pub(crate) files: u64,
    pub(crate) size_bytes: u64,
}

/// The object behind a file.
#[derive(Serialize, Debug)]
pub(crate) struct OriginReport {
    pub(crate) url: String,
    pub(crate) tag: String,
}

/// What `stripe show` and `stripe set` print.
#[derive(Serialize, Debug)]
pub(crate) struct StripeReport {
    pub(crate) path: String,
    pub(crate) directory: bool,
    pub(crate) chunk_size_bytes: u64,
    /// -1: all groups of the pool.
    pub(crate) stripe_count: i32,
    pub(crate) pool: String,
    pub(crate) size_bytes: u64,
    /// Of a directory: new files up to so many bytes may live in their inodes. Of a file: how many
    /// of its bytes do, all or none.
    pub(crate) inline_bytes: u32,
    pub(crate) chunks: Vec<ChunkReport>,
    /// Whether the file has more chunks than are listed.
    pub(crate) truncated: bool,
}

/// Where one chunk is.
#[derive(Serialize, Debug)]
pub(crate) struct ChunkReport {
    pub(crate) index: u32,
    pub(crate) group: u32,
    pub(crate) targets: Vec<String>,
}

impl StatusReport {
    /// The state of a cluster that answered at `address`.
    pub(crate) fn new(status: &ClusterStatusReply, address: String) -> Self {
        let server = ServerReport {
            address,
            role: "metadata",
            state: "online",
            version: Some(status.version.clone()),
            started: Some(time_text(status.started)),
            log_applied: Some(status.log.applied.0),
            log_synced: Some(status.log.synced.0),
            log_size_bytes: Some(status.log.size.0),
        };
        Self {
            health: health_name(status.health),
            problems: status.problems.clone(),
            cluster: Some(status.cluster.clone()),
            servers: vec![server],
            inodes: status.inodes,
            reclaim_entries: status.reclaim_entries,
            targets: status.targets.iter().map(TargetReport::from).collect(),
            sessions: status.sessions.iter().map(SessionReport::from).collect(),
            links: status.links.iter().map(LinkReport::from).collect(),
            jobs: status.jobs.iter().map(JobReport::from).collect(),
        }
    }

    /// A cluster of which nobody answers.
    pub(crate) fn unreachable(addresses: &[String], problem: String) -> Self {
        let servers = addresses.iter().map(|address| ServerReport {
            address: address.clone(),
            role: "metadata",
            state: "unreachable",
            version: None,
            started: None,
            log_applied: None,
            log_synced: None,
            log_size_bytes: None,
        });
        Self {
            health: "unreachable",
            problems: vec![problem],
            cluster: None,
            servers: servers.collect(),
            inodes: 0,
            reclaim_entries: 0,
            targets: Vec::new(),
            sessions: Vec::new(),
            links: Vec::new(),
            jobs: Vec::new(),
        }
    }
}

impl From<&millrace_protocol::admin::TargetStatus> for TargetReport {
    fn from(target: &millrace_protocol::admin::TargetStatus) -> Self {
        Self {
            id: target.id.to_string(),
            state: target_state_name(target.state),
            capacity_bytes: target.capacity.0,
            used_bytes: target.used.0,
            host: target.host_name.clone(),
            addresses: target.addresses.clone(),
            groups: target.groups,
            bad_blocks: target.bad_blocks,
            heard: time_text(target.heard),
        }
    }
}

impl From<&millrace_protocol::admin::SessionStatus> for SessionReport {
    fn from(session: &millrace_protocol::admin::SessionStatus) -> Self {
        Self {
            id: session.session.0,
            host: session.host_name.clone(),
            expires: time_text(session.expires),
            write_opens: session.write_opens,
        }
    }
}

impl From<&LinkStatus> for LinkReport {
    fn from(link: &LinkStatus) -> Self {
        Self {
            path: path_text(&link.path),
            url: link.bucket.url.clone(),
            id: link.id.0,
            mode: mode_name(link.mode),
            endpoint: link.bucket.endpoint.clone(),
            region: link.bucket.region.clone(),
            credentials: link.bucket.credentials.clone(),
            options: None,
            auto_export: None,
            fetch: None,
            requests: None,
            requests_without: Vec::new(),
            propagate_deletes: None,
            refresh: None,
            removal: None,
        }
    }
}

impl LinkReport {
    /// The same with the options that belong to it.
    pub(crate) fn with_options(self, known: &[LinkOptions]) -> Self {
        let own = known.iter().find(|options| options.id.0 == self.id);
        let options = own.map(|options| LinkOptionsReport {
            refresh_seconds: options.refresh_seconds,
            attributes: match options.attributes {
                AttributeSource::Listing => "listing",
                AttributeSource::Objects => "objects",
            },
        });
        Self { options, ..self }
    }

    /// The same with how it exports by itself.
    pub(crate) fn with_auto_export(self, known: &[AutoExport]) -> Self {
        let own = known.iter().find(|export| export.link.0 == self.id);
        Self { auto_export: own.map(AutoExportReport::from), ..self }
    }

    /// The same with how removals reach the bucket.
    pub(crate) fn with_deletes(self, known: &[DeletePropagation]) -> Self {
        let own = known.iter().find(|deletes| deletes.link.0 == self.id);
        Self { propagate_deletes: own.map(PropagationReport::from), ..self }
    }

    /// The same with how it is listed again by itself.
    pub(crate) fn with_refreshes(self, known: &[RefreshInterval]) -> Self {
        let own = known.iter().find(|refresh| refresh.link.0 == self.id);
        Self { refresh: own.map(RefreshReport::from), ..self }
    }

    /// The same with how it is being removed.
    pub(crate) fn with_removals(self, known: &[Removal]) -> Self {
        let own = known.iter().find(|removal| removal.link.0 == self.id);
        Self { removal: own.map(RemovalReport::from), ..self }
    }

    /// The same with what is fetched behind reads.
    pub(crate) fn with_fetches(self, known: &[LinkFetches]) -> Self {
        let own = known.iter().find(|fetches| fetches.link.0 == self.id);
        Self { fetch: own.map(FetchReport::from), ..self }
    }
}

impl LinkReport {
    /// The same with what its bucket was asked, and by whom that is not known.
    pub(crate) fn with_requests(self, known: &RequestsReply) -> Self {
        let has = |bucket: &&BucketRequests| bucket.links.iter().any(|link| link.0 == self.id);
        let requests = known.buckets.iter().find(has).map(|bucket| bucket.counts.into());
        Self { requests, requests_without: known.silent.clone(), ..self }
    }
}

fn origin(origin: Option<&(String, String)>) -> Option<OriginReport> {
    origin.map(|(url, tag)| OriginReport { url: url.clone(), tag: tag.clone() })
}

impl From<&JobFailure> for FailureReport {
    fn from(failed: &JobFailure) -> Self {
        Self { path: subject_text(&failed.path), error: failed.failure.to_string() }
    }
}

impl From<&Job> for JobReport {
    fn from(job: &Job) -> Self {
        let failures = job.failures.iter().map(FailureReport::from);
        Self {
            id: job.id.0,
            kind: kind_name(job.kind),
            path: path_text(&job.path),
            state: job_state_name(job.state),
            files_done: job.files_done,
            files_total: job.files_total,
            bytes_done: job.bytes_done,
            bytes_total: job.bytes_total,
            errors: job.errors,
            failures: failures.collect(),
            started: time_text(job.started),
            ended: job.ended.map(time_text),
            selection: None,
            options: None,
            requests: None,
            waits: Vec::new(),
            directories: None,
            pace: None,
        }
    }
}

impl StateReport {
    /// The state of what was asked for as `path`.
    pub(crate) fn new(path: String, known: &KnownStateReply) -> Self {
        let KnownStateReply { state: reply, silent, .. } = known;
        let silent = silent.iter().map(|silent| SilentTargetReport {
            id: silent.target.to_string(),
            files: silent.files,
            error: silent.reason.clone(),
        });
        let sums = reply.sums.iter().map(|sum| StateSumReport {
            state: sum.state.name(),
            files: sum.files,
            size_bytes: sum.size.0,
        });
        Self {
            path,
            state: reply.state.map(FileState::name),
            size_bytes: reply.size.0,
            hydrated_bytes: reply.hydrated.0,
            directory: reply.directory,
            states: sums.collect(),
            unlisted_directories: reply.unlisted_directories,
            unknown_files: known.unknown_files,
            unknown_bytes: known.unknown_size.0,
            silent_targets: silent.collect(),
            origin: origin(reply.origin.as_ref()),
        }
    }
}

impl StripeReport {
    /// The layout of what was asked for as `path`.
    pub(crate) fn new(path: String, reply: &LayoutReply) -> Self {
        let chunks = reply.chunks.iter().map(|chunk| ChunkReport {
            index: chunk.index.0,
            group: chunk.group.0,
            targets: chunk.targets.iter().map(ToString::to_string).collect(),
        });
        Self {
            path,
            directory: reply.directory,
            chunk_size_bytes: reply.chunk_size.bytes(),
            stripe_count: reply.stripe_count,
            pool: reply.pool.clone(),
            size_bytes: reply.size,
            inline_bytes: reply.inline_bytes,
            chunks: chunks.collect(),
            truncated: reply.truncated,
        }
    }
}

/// The word for how well something is.
pub(crate) fn health_name(health: Health) -> &'static str {
    match health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
    }
}

fn target_state_name(state: TargetState) -> &'static str {
    match state {
        TargetState::Joining => "joining",
        TargetState::Online => "online",
        TargetState::Suspect => "suspect",
        TargetState::Offline => "offline",
    }
}

fn mode_name(mode: LinkMode) -> &'static str {
    match mode {
        LinkMode::ReadOnly => "read-only",
        LinkMode::Import => "import",
        LinkMode::ImportExport => "import-export",
    }
}

/// The word for what a job does.
pub(crate) fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Import => "import",
        JobKind::Hydrate => "hydrate",
        JobKind::Release => "release",
        JobKind::Export => "export",
    }
}

fn job_state_name(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "queued",
        JobState::Running => "running",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

#[cfg(test)]
mod tests;
