//! Commands on links, imported names, jobs and exports.

use millrace_metadata_server::{
    command::{
        AddJob, AddJobByState, AddJobWithOptions, AddLink, AddSelectedJob, AddUnusedJob,
        BeginExport, Command, CompleteExport, DropDirectory, ForgetDeletion, ForgetEntries,
        FoundObject, ImportEntries, ImportEntry, ImportKind, JobCounts, NoteJobDetail, NoteLeftOut,
        ObserveObject, RecordCopy, ResolveConflict, SetAutoExport, SetDeletePropagation,
        SetFetchPolicy, SetLinkOptions, SetRefreshInterval, UpdateJob,
    },
    namespace::{Body, Inode, tree},
    store::{
        View, keys,
        records::{DeletionRecord, Export, JobRecord, LinkRecord},
    },
};
use millrace_protocol::{
    admin::{AttributeSource, FileState, Job, JobFailure, JobKind, JobState, Keep},
    ahead::FetchPolicy,
    capability::Origin,
    cluster::{Bucket, LinkMode},
    job_detail::JobDetail,
    job_options::JobOptions,
    left_out::{LeftOutKey, LeftOutReason},
    requests::RequestCounts,
    selection::Selection,
};
use millrace_types::{
    ChangeCount, ContentGeneration, ErrorKind, FileName, InodeId, JobId, LinkId, MIB, Timestamp,
};

use super::Commands;
use crate::chance::{percent, pick};

impl Commands {
    pub(super) fn add_link(&mut self, view: &dyn View) -> Command {
        let empty = |inode: &Inode| inode.is_directory() && inode.size == 0 && inode.links > 0;
        let modes = [LinkMode::ReadOnly, LinkMode::Import, LinkMode::ImportExport];
        let bucket = Bucket {
            url: "s3://photos".to_owned(),
            endpoint: Some("http://127.0.0.1:8333".to_owned()),
            region: None,
            credentials: Some("lab".to_owned()),
        };
        Command::AddLink(AddLink {
            directory: self.inode(view, empty).id,
            bucket,
            prefix: pick(&self.random, &["", "train/", "bad"]).unwrap().to_string(),
            mode: *pick(&self.random, &modes).unwrap(),
        })
    }

    pub(super) fn end_link(&mut self, view: &dyn View) -> Command {
        let link = self.link(view);
        match self.random.within(0..3) {
            0 => Command::RemoveLink(link),
            1 => Command::BeginLinkDiscard(link),
            _ => Command::BeginLinkRemoval(link),
        }
    }

    pub(super) fn forget_entries(&mut self, view: &dyn View) -> Command {
        let directory = self.linked(view);
        let link = match &directory.body {
            Body::Directory(body) => body.linked.as_ref().map(|linked| linked.link),
            _ => None,
        };
        let listed = tree::list(view, directory.id, 0, 2).unwrap();
        let mut names: Vec<_> = listed.into_iter().map(|(name, _)| name).collect();
        names.push(self.name());
        let link = link.unwrap_or(LinkId(99));
        let forget = ForgetEntries { link, directory: directory.id, names };
        match percent(&self.random, 50) {
            true => Command::ForgetSaved(forget),
            false => Command::ForgetEntries(forget),
        }
    }

    pub(super) fn import_entries(&mut self, view: &dyn View) -> Command {
        let directory = self.linked(view).id;
        let count = self.random.within(0..5);
        let entries = (0..count).map(|_| self.import_entry()).collect();
        Command::ImportEntries(ImportEntries { directory, entries })
    }

    fn import_entry(&mut self) -> ImportEntry {
        let name = self.name();
        let kind = match self.random.within(0..8) {
            0..2 => ImportKind::Directory,
            2 => ImportKind::Symlink(b"target".to_vec()),
            _ => ImportKind::File(self.origin(&name)),
        };
        ImportEntry {
            name,
            inode: self.new_inode(),
            seed: self.seed(),
            mode: 0o644,
            uid: 1000,
            gid: 100,
            modified: Timestamp(1_700_000_000_000_000_000),
            kind,
        }
    }

    fn origin(&self, name: &FileName) -> Origin {
        Origin {
            link: LinkId(1),
            key: format!("train/{name}"),
            size: self.random.within(0..30 * MIB),
            tag: format!("\"tag{}\"", self.random.within(0..3)),
            modified: Timestamp(1_700_000_000_000_000_000),
        }
    }

    pub(super) fn mark_listed(&mut self, view: &dyn View) -> Command {
        Command::MarkDirectoryListed(self.linked(view).id)
    }

    pub(super) fn job(&mut self, view: &dyn View) -> Command {
        let kinds = [JobKind::Import, JobKind::Hydrate, JobKind::Release, JobKind::Export];
        if percent(&self.random, 40) {
            let job = Job {
                id: JobId(0),
                kind: *pick(&self.random, &kinds).unwrap(),
                path: b"/train".to_vec(),
                state: JobState::Queued,
                files_done: 0,
                files_total: 0,
                bytes_done: 0,
                bytes_total: 0,
                errors: 0,
                failures: Vec::new(),
                started: Timestamp(0),
                ended: None,
            };
            let root = self.directory(view);
            let add = AddJob { job, caller: self.caller(), root };
            match self.random.within(0..5) {
                0 | 1 => return Command::AddJob(add),
                2 => return Command::AddPublication(add),
                _ => {}
            }
            let include = vec!["*.jpg".to_owned(); usize::from(percent(&self.random, 60))];
            let selection = Selection { include, ..Selection::default() };
            let dry_run = percent(&self.random, 50);
            let selected = AddSelectedJob { add, selection, dry_run };
            if percent(&self.random, 50) {
                return Command::AddSelectedJob(Box::new(selected));
            }
            let priority = i8::try_from(self.random.within(0..21)).unwrap() - 10;
            let options = JobOptions { priority, report: true, ..JobOptions::default() };
            let with_options = AddJobWithOptions { selected, options };
            if percent(&self.random, 30) {
                let seconds = self.random.within(0..1_000_000);
                let unused = AddUnusedJob { job: with_options, seconds };
                return Command::AddUnusedJob(Box::new(unused));
            }
            if percent(&self.random, 30) {
                let states = vec![FileState::Dirty, FileState::Conflict];
                let by_state = AddJobByState { job: with_options, unused: None, states };
                return Command::AddJobByState(Box::new(by_state));
            }
            return Command::AddJobWithOptions(Box::new(with_options));
        }
        let id = self.record::<JobRecord>(view, &keys::jobs()).map_or(9, |(id, _)| id);
        if percent(&self.random, 20) {
            let list = self.random.within(0..100);
            let requests = RequestCounts { list, ..RequestCounts::default() };
            let detail = JobDetail { requests, ..JobDetail::default() };
            return Command::NoteJobDetail(Box::new(NoteJobDetail { id: JobId(id), detail }));
        }
        let states =
            [JobState::Running, JobState::Succeeded, JobState::Failed, JobState::Cancelled];
        let failure = JobFailure { path: b"/x".to_vec(), failure: ErrorKind::Lost.into() };
        Command::UpdateJob(UpdateJob {
            id: JobId(id),
            state: percent(&self.random, 40).then(|| *pick(&self.random, &states).unwrap()),
            counts: JobCounts { files_done: self.random.within(0..9), ..JobCounts::default() },
            failures: vec![failure; usize::from(percent(&self.random, 20))],
        })
    }

    pub(super) fn begin_export(&mut self, view: &dyn View) -> Command {
        Command::BeginExport(BeginExport {
            inode: self.file(view).id,
            job: JobId(1),
            export: u128::from(self.random.within(0..1 << 40)),
            link: self.link(view),
            key: "out/checkpoint.pt".to_owned(),
            replaces: percent(&self.random, 50).then(|| "\"tag0\"".to_owned()),
            part_size: 8 * MIB,
        })
    }

    pub(super) fn go_on_with_export(&mut self, view: &dyn View) -> Command {
        let known = self.record::<Export>(view, &keys::exports());
        let (inode, id) = known
            .filter(|_| percent(&self.random, 95))
            .map_or_else(|| (self.file(view).id, 1), |(inode, export)| (InodeId(inode), export.id));
        match self.random.within(0..7) {
            0 => Command::AbortExport { inode, export: id },
            5 => Command::RecordCopy(Box::new(RecordCopy {
                job: JobId(1),
                inode,
                bucket: Bucket {
                    url: "s3://copies".to_owned(),
                    endpoint: None,
                    region: None,
                    credentials: None,
                },
                key: "copy".to_owned(),
                generation: ContentGeneration(1),
                change_count: ChangeCount(1),
                size: 16 * MIB,
                part_size: 8 * MIB,
                upload_id: percent(&self.random, 50).then(|| "upload-8".to_owned()),
            })),
            6 => Command::ForgetCopy { job: JobId(1), inode },
            4 => Command::ReopenExport { inode, export: id },
            1 => Command::RecordUpload { inode, export: id, upload_id: "upload-7".to_owned() },
            _ => {
                let origin = self.origin(&self.name());
                Command::CompleteExport(CompleteExport { inode, export: id, origin })
            }
        }
    }

    pub(super) fn changed_bucket(&mut self, view: &dyn View) -> Command {
        let found = percent(&self.random, 60).then(|| FoundObject {
            origin: self.origin(&self.name()),
            modified: Timestamp(1_710_000_000_000_000_000),
        });
        match self.random.within(0..18) {
            12 => Command::SetDeletePropagation(SetDeletePropagation {
                link: self.link(view),
                on: percent(&self.random, 80),
            }),
            13 => Command::ForgetDeletion(Box::new(self.deletion(view))),
            16 => Command::ObjectDeleted(Box::new(self.deletion(view))),
            17 => Command::SweepWhiteouts,
            14 => {
                let first =
                    vec![LeftOutKey { key: "a//b".to_owned(), reason: LeftOutReason::EmptyPart }];
                let (directory, keys) = (self.linked(view).id, self.random.within(0..3));
                Command::NoteLeftOut(NoteLeftOut { directory, keys, first })
            }
            15 => Command::SetRefreshInterval(SetRefreshInterval {
                link: self.link(view),
                every_seconds: percent(&self.random, 50).then_some(60),
            }),
            10 => Command::SetFetchPolicy(SetFetchPolicy {
                link: self.link(view),
                policy: FetchPolicy::Chunk,
            }),
            11 => Command::SetAutoExport(SetAutoExport {
                link: self.link(view),
                quiet_seconds: percent(&self.random, 50).then_some(30),
            }),
            0 => Command::SetLinkOptions(SetLinkOptions {
                link: self.link(view),
                refresh_seconds: Some(30),
                attributes: percent(&self.random, 50).then_some(AttributeSource::Objects),
            }),
            1 => {
                let (parent, name) = self.entry(view);
                let entry = tree::entry(view, parent, &name).unwrap();
                let inode = entry.map_or(parent, |entry| entry.inode);
                Command::DropDirectory(DropDirectory { parent, name, inode })
            }
            2..6 => {
                let inode = match self.pair(view, &keys::conflicts()) {
                    Some((key, _)) => InodeId(keys::number_at(&key, 1).unwrap()),
                    None => self.file(view).id,
                };
                let keep = *pick(&self.random, &[Keep::Local, Keep::Bucket]).unwrap();
                let caller = self.caller();
                Command::ResolveConflict(ResolveConflict { caller, inode, keep, found })
            }
            _ => {
                let inode =
                    self.inode(view, |inode| inode.file().is_ok_and(|file| file.origin.is_some()));
                let origin = inode.file().ok().and_then(|file| file.origin.as_ref());
                let known = origin.map(|origin| origin.tag.clone());
                Command::ObserveObject(ObserveObject { inode: inode.id, known, found })
            }
        }
    }

    /// One that waits, if any does.
    fn deletion(&self, view: &dyn View) -> ForgetDeletion {
        let link = self.link(view);
        let queued = tree::scan::<DeletionRecord>(view, &keys::deletions(link), 1);
        let (key, tag, queued) = queued.unwrap().pop().map_or_else(
            || ("none".to_owned(), String::new(), Timestamp(0)),
            |(key, record)| {
                let key = keys::after(&key, &keys::deletions(link)).to_vec();
                (String::from_utf8(key).unwrap(), record.tag, record.queued)
            },
        );
        ForgetDeletion { link, key, tag, queued }
    }

    fn link(&self, view: &dyn View) -> LinkId {
        let known = self.pair(view, &keys::links());
        known.map_or(LinkId(99), |(key, _)| {
            LinkId(u32::from_be_bytes(key[1..5].try_into().unwrap()))
        })
    }

    /// A directory that shows a link, if there is one: of a link that is being removed rather.
    fn linked(&self, view: &dyn View) -> Inode {
        let links = tree::scan::<LinkRecord>(view, &keys::links(), usize::MAX).unwrap();
        let directories: Vec<_> = links.iter().map(|(_, link)| link.directory).collect();
        match pick(&self.random, &directories) {
            Some(&top) if percent(&self.random, 60) => {
                tree::find(view, top).unwrap().unwrap_or_else(|| self.inode(view, |_| true))
            }
            _ => self.inode(
                view,
                |inode| matches!(&inode.body, Body::Directory(body) if body.linked.is_some()),
            ),
        }
    }
}
