//! Removes links: their names go, a page after the other, and the buckets stay as they are.
//!
//! That a removal has begun is recorded with its link: nothing is imported or exported through it
//! from then on. It may take long, and programs go on using what is still there. So it goes on by
//! itself after a restart and after whatever stopped it. Of what is only here it gives up nothing
//! unless somebody said so, which is recorded too: without that each file is looked at.

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use millrace_protocol::{
    admin::{Removal, RemoveLink},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, InodeId, LinkId};
use roaring::RoaringTreemap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::looks::{Page, look, removals, standing, unended};
use super::{
    destination::{agrees, only_here},
    environment::Environment,
    import::{Importer, broken},
    jobs::end_uploads,
    links::link_at,
    walk::{self, Unlisted, Walk, path_of},
};
use crate::{
    command::{self, Command, ForgetEntries},
    namespace::{Inode, tree},
    store::{keys, records::JobRecord},
};

mod looks;

/// How often it is looked which removals have begun and do not go on.
const LOOK: Duration = Duration::from_secs(30);

/// Removals that go on by themselves at a time.
const GOING_MAX: usize = 4;

/// How long who asks for a removal that is under way waits for its end, before asking again: less
/// than the tool waits for an answer.
const JOINED_MAX: Duration = Duration::from_secs(60);

/// How often a removal looks again because names were made where it had just found none. Who goes
/// on making them for ever keeps it until then, and it rests.
const RACES_MAX: u32 = 100;

/// Removes links. One per server.
#[derive(Debug)]
pub(super) struct Remover<E> {
    environment: Arc<E>,
    importer: Arc<Importer<E>>,
    running: Mutex<HashMap<LinkId, Running>>,
    /// Files of several names that the bucket had when one of them was to go.
    backed: Mutex<HashMap<LinkId, RoaringTreemap>>,
}

/// A removal that is under way.
#[derive(Debug, Clone)]
struct Running {
    discard: bool,
    ended: watch::Receiver<Ended>,
}

/// How a removal ended; `None` before that, and for one that was dropped.
type Ended = Option<Result<(), Failure>>;

/// A removal is under way as long as this is there.
struct Begun<'a, E: Environment> {
    remover: &'a Remover<E>,
    link: LinkId,
    ended: Ended,
    tell: watch::Sender<Ended>,
}

impl<E: Environment> Remover<E> {
    pub(super) fn new(environment: Arc<E>, importer: Arc<Importer<E>>) -> Self {
        let (running, backed) = (Mutex::default(), Mutex::default());
        Self { environment, importer, running, backed }
    }

    /// Unbinds a directory. Where that is under way already, waits for its end.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] with a sentence while files are dirty, or were renamed and not
    /// exported, and `discard` is not said, or while a job works there; [`ErrorKind::NotFound`]
    /// when the directory is not the top of a link; [`ErrorKind::DeadlineExceeded`] when what is
    /// under way takes long: it goes on.
    pub(super) async fn remove(&self, request: &RemoveLink) -> Result<(), Failure> {
        let link = link_at(&*self.environment, &self.importer, &request.path).await?;
        loop {
            let running = match self.begin(link, request.discard) {
                Ok(begun) => return self.carry_out(begun, request.discard).await,
                Err(running) => running,
            };
            if request.discard && !running.discard {
                self.note_discard(link).await?;
            }
            let gives_up = running.discard;
            match end_of(running).await? {
                Some(Ok(())) => return Ok(()),
                // What stops one that gives up nothing does not stop one that does.
                Some(Err(failure)) if gives_up || !request.discard => return Err(failure),
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Of a removal that has begun without `--discard`, somebody says it now. Who is at work on it
    /// finds that at the next look, and who goes on after a restart does, too.
    async fn note_discard(&self, link: LinkId) -> Result<(), Failure> {
        let found = self.environment.read(move |view| standing(view, link)).await?;
        let begun = found.filter(|found| found.removing);
        let Some(command) = begun.and_then(|found| found.beginning(link, true)) else {
            return Ok(());
        };
        match self.environment.execute(command, true).await {
            // It is removed by now.
            Err(failure) if failure.kind == ErrorKind::NotFound => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    /// Links whose removal has begun and not ended.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn list(&self) -> Result<Vec<Removal>, Failure> {
        self.environment.read(removals).await
    }

    /// Goes on with removals that have begun and did not end, until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = Box::pin(self.work()) => {}
        }
    }

    async fn work(&self) {
        let mut told: HashMap<LinkId, String> = HashMap::new();
        let mut due = VecDeque::new();
        let mut going = FuturesUnordered::new();
        loop {
            match self.environment.read(unended).await {
                Ok(links) => {
                    told.retain(|link, _| links.contains(link));
                    self.line_up(&mut due, links);
                }
                Err(failure) => {
                    tracing::debug!(%failure, "links that are being removed are unknown");
                }
            }
            let mut pause = pin!(tokio::time::sleep(LOOK));
            loop {
                while going.len() < GOING_MAX
                    && let Some(link) = due.pop_front()
                {
                    // Who asked for one that is under way hears of its end.
                    if let Ok(begun) = self.begin(link, false) {
                        going.push(self.go_on(begun));
                    }
                }
                tokio::select! {
                    Some((link, ended)) = going.next(), if !going.is_empty() => {
                        tell_end(link, ended, &mut told);
                    }
                    () = &mut pause => break,
                }
            }
        }
    }

    /// Puts those of some links that are not under way behind those that wait: what is stopped
    /// again and again keeps nobody waiting.
    fn line_up(&self, due: &mut VecDeque<LinkId>, links: Vec<LinkId>) {
        due.retain(|link| links.contains(link));
        let running = self.running();
        for link in links {
            if !running.contains_key(&link) && !due.contains(&link) {
                due.push_back(link);
            }
        }
    }

    async fn go_on(&self, begun: Begun<'_, E>) -> (LinkId, Result<(), Failure>) {
        let link = begun.link;
        (link, self.carry_out(begun, false).await)
    }

    /// The removal of a link is under way now; the one that is, if it was.
    fn begin(&self, link: LinkId, discard: bool) -> Result<Begun<'_, E>, Running> {
        let mut running = self.running();
        if let Some(known) = running.get(&link) {
            return Err(known.clone());
        }
        let (tell, ended) = watch::channel(None);
        running.insert(link, Running { discard, ended });
        Ok(Begun { remover: self, link, ended: None, tell })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<LinkId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn carry_out(&self, mut begun: Begun<'_, E>, discard: bool) -> Result<(), Failure> {
        let ended = Box::pin(self.remove_one(begun.link, discard)).await;
        begun.ended = Some(ended.clone());
        ended
    }

    async fn remove_one(&self, link: LinkId, discard: bool) -> Result<(), Failure> {
        let environment = &*self.environment;
        // Another may have removed it meanwhile.
        let Some(found) = environment.read(move |view| standing(view, link)).await? else {
            return Ok(());
        };
        refuse_jobs(environment, found.top).await?;
        if !found.removing && !discard {
            refuse_dirty(environment, &self.importer, found.top).await?;
            // That may have taken minutes.
            refuse_jobs(environment, found.top).await?;
        }
        if let Some(command) = found.beginning(link, discard) {
            environment.execute(command, true).await?;
        }
        self.forget_below(link, found.top, discard).await?;
        end_uploads(&self.environment, &self.importer, link).await?;
        environment.execute(Command::RemoveLink(link), true).await?;
        self.backed().remove(&link);
        Ok(())
    }

    /// Removes all names below a directory, deepest first. Each round takes the first names that
    /// are left, so that an interrupted removal goes on where it stopped.
    async fn forget_below(&self, link: LinkId, top: InodeId, discard: bool) -> Result<(), Failure> {
        let mut open = vec![top];
        let (mut emptied, mut races) = (None, 0);
        while let Some(&directory) = open.last() {
            // Before the look: what it shows has to be so still when it is forgotten.
            self.environment.give_way().await;
            let page = self.environment.read(move |view| look(view, link, directory)).await?;
            if page.names.is_empty() {
                open.pop();
                continue;
            }
            if emptied.take() == Some(directory) {
                self.note_race(&mut races, directory).await?;
            }
            if let Some(foreign) = &page.foreign {
                return Err(self.another_link(foreign).await);
            }
            if let Some(below) = page.full {
                open.push(below);
                continue;
            }
            // Below the level that records it, only who says it knows.
            let discard = discard || page.discard;
            if !discard && let Some(file) = self.first_only_here(link, &page) {
                return Err(self.only_copy(file).await);
            }
            emptied = page.is_last.then_some(directory);
            match self.forget(link, directory, page, discard).await {
                Ok(()) => {}
                Err(failure) if has_changed(failure.kind) => {
                    self.note_race(&mut races, directory).await?;
                    emptied = None;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// The first file of a page that no bucket may have as it is.
    ///
    /// Of several names the first one tells where a file's object is, and it may go before the
    /// others. Its object stays: nothing is exported through the link. So it is remembered that the
    /// bucket had it, also for the next try, but not over a restart.
    fn first_only_here<'a>(&self, link: LinkId, page: &'a Page) -> Option<&'a Inode> {
        let mut backed = self.backed();
        let known = backed.entry(link).or_default();
        for id in &page.shared {
            known.insert(id.0);
        }
        let had = |inode: &Inode| known.contains(inode.id.0) && inode.file().is_ok_and(agrees);
        page.only_here.iter().find(|inode| !had(inode))
    }

    fn backed(&self) -> MutexGuard<'_, HashMap<LinkId, RoaringTreemap>> {
        self.backed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes names that were just looked at.
    async fn forget(
        &self,
        link: LinkId,
        directory: InodeId,
        page: Page,
        discard: bool,
    ) -> Result<(), Failure> {
        if page.is_linked {
            let names = page.names.into_iter().map(|(name, _)| name).collect();
            let forget = ForgetEntries { link, directory, names };
            // Since the look a file may have been written, or another one have taken its name.
            let command = match page.is_checked && !discard {
                true => Command::ForgetSaved(forget),
                false => Command::ForgetEntries(forget),
            };
            return self.environment.execute(command, false).await.map(|_| ());
        }
        for (name, is_directory) in page.names {
            let remove = command::Remove {
                caller: Caller::ROOT,
                parent: directory,
                name,
                directory: is_directory,
                readers: Vec::new(),
            };
            match self.environment.execute(Command::Remove(remove), false).await {
                Err(failure) if failure.kind != ErrorKind::NotFound => return Err(failure),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Names were made in a directory while it was being emptied.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] when that was so too often.
    async fn note_race(&self, races: &mut u32, directory: InodeId) -> Result<(), Failure> {
        *races += 1;
        if *races <= RACES_MAX {
            return Ok(());
        }
        let inode = walk::inode(&*self.environment, directory).await?;
        let path = path_of(&*self.environment, &inode).await;
        let words = format!(
            "names are made in {} while they are being removed: stop what makes them; the removal \
             goes on within a minute, or with millrace link remove",
            path.escape_ascii()
        );
        Err(Failure::new(ErrorKind::InUse, words))
    }

    async fn only_copy(&self, file: &Inode) -> Failure {
        let path = path_of(&*self.environment, file).await;
        let words = format!(
            "{} may be in no bucket as it is (written or renamed since the removal of its link \
             began): copy it out of there and remove it, or give it up with millrace link remove \
             --discard; the removal goes on then",
            path.escape_ascii()
        );
        Failure::new(ErrorKind::InUse, words)
    }

    async fn another_link(&self, directory: &Inode) -> Failure {
        let path = path_of(&*self.environment, directory).await;
        let words = format!(
            "{0} is the directory of another link: remove that one first, with millrace link \
             remove {0}",
            path.escape_ascii()
        );
        Failure::new(ErrorKind::InUse, words)
    }
}

impl<E: Environment> Drop for Begun<'_, E> {
    fn drop(&mut self) {
        // First, so that who hears of the end finds that nothing is under way.
        self.remover.running().remove(&self.link);
        drop(self.tell.send_replace(self.ended.take()));
    }
}

/// Waits for the end of a removal; `None` for one that was dropped.
async fn end_of(mut running: Running) -> Result<Ended, Failure> {
    let ended = running.ended.wait_for(Option::is_some);
    let Ok(ended) = tokio::time::timeout(JOINED_MAX, ended).await else {
        return Err(Failure::new(
            ErrorKind::DeadlineExceeded,
            "the link is being removed already, and that goes on: millrace link list has it until \
             it is removed",
        ));
    };
    Ok(ended.ok().and_then(|ended| ended.clone()))
}

/// Whether a page could not be forgotten because it is another by now.
fn has_changed(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotEmpty
            | ErrorKind::Stale
            | ErrorKind::IsDirectory
            | ErrorKind::NotDirectory
            | ErrorKind::Conflict
    )
}

/// Tells the log what became of a removal that went on by itself. What stays as it is stands there
/// once.
fn tell_end(link: LinkId, ended: Result<(), Failure>, told: &mut HashMap<LinkId, String>) {
    let Err(failure) = ended else {
        tracing::info!(link = link.0, "a link is removed, as was asked before");
        return;
    };
    let words = failure.to_string();
    if told.get(&link) != Some(&words) {
        tracing::warn!(link = link.0, %failure,
            "a link cannot be removed yet, and is tried again");
        told.insert(link, words);
    }
}

async fn refuse_jobs<E: Environment>(environment: &E, top: InodeId) -> Result<(), Failure> {
    let busy = environment.read(move |view| {
        let jobs = tree::scan::<JobRecord>(view, &keys::jobs(), usize::MAX).map_err(broken)?;
        for (_, record) in jobs {
            if record.job.state.is_final() {
                continue;
            }
            let Some(root) = tree::find(view, record.root).map_err(broken)? else { continue };
            let top = tree::inode(view, top).map_err(walk::refused)?;
            let below = tree::is_below(view, &root, top.id).map_err(broken)?;
            if below || tree::is_below(view, &top, root.id).map_err(broken)? {
                return Ok(Some(record.job.id));
            }
        }
        Ok(None)
    });
    match busy.await? {
        None => Ok(()),
        Some(job) => Err(Failure::new(
            ErrorKind::InUse,
            format!("job {0} works there: wait for it, or say millrace job cancel {0}", job.0),
        )),
    }
}

async fn refuse_dirty<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    top: InodeId,
) -> Result<(), Failure> {
    let mut walk = Walk::new(top, Unlisted::Leave);
    let (mut dirty, mut example) = (0_u64, None);
    while let Some(page) = walk.next(environment, importer).await.map_err(|(_, failure)| failure)? {
        for inode in environment.read(move |view| only_here(view, page)).await? {
            dirty += 1;
            example.get_or_insert(inode);
        }
    }
    let Some(example) = example else { return Ok(()) };
    let path = path_of(environment, &example).await;
    Err(Failure::new(
        ErrorKind::InUse,
        format!(
            "{dirty} files differ from the bucket, or were renamed and not exported since (the \
             first: {}): write them back with millrace export, where the link's mode is \
             import-export, or give them up with --discard",
            path.escape_ascii()
        ),
    ))
}
