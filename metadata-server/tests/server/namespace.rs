//! Random operations through the server's operations layer, with a model beside it: every answer
//! is the model's, and what must always hold does. Seeds are others each time; of steps that fail
//! few are left.

mod acl;
mod invariants;
mod model;
mod names;
mod rename;
mod requests;
mod steps;
mod xattr;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt::Debug,
    mem,
    time::Duration,
    vec,
};

use millrace_metadata_server::{engine::StoreKind, ops, sessions::late_opens};
use millrace_protocol::{
    capability::{Capability, Rights},
    codec,
    metadata::{DirectoryPage, FileKind, InodeReply, ReadDirectory},
    session::Caller,
};
use millrace_runtime::Random;
use millrace_types::{ChangeCount, ErrorKind, FileName, InodeId, TargetId};
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};
use tempfile::TempDir;

use self::{
    model::{Answer, Model, Node},
    steps::{Step, Steps},
};
use crate::{
    chance::{for_each_seed, percent, pick, stretched},
    engine::{ENGINES, Server, rebuilt},
    hosts::{Host, Run, register_targets},
};

/// Seeds of each engine.
const SEEDS: u64 = 2;
/// Steps of each seed.
const STEPS: usize = 420;
/// A run that fails is tried so often with fewer steps, for so long: what is left by then is short
/// enough to be read.
const SHRINKS_MAX: u32 = 1_000;
const SHRINKING_MAX_MS: u32 = 60_000;

/// What POSIX refuses requests with, as far as it can happen here.
const REFUSALS: [ErrorKind; 13] = [
    ErrorKind::NotFound,
    ErrorKind::Exists,
    ErrorKind::NotDirectory,
    ErrorKind::IsDirectory,
    ErrorKind::NotEmpty,
    ErrorKind::PermissionDenied,
    ErrorKind::NotPermitted,
    ErrorKind::InvalidArgument,
    ErrorKind::NoSpace,
    ErrorKind::FileTooLarge,
    ErrorKind::NoData,
    ErrorKind::NotSupported,
    ErrorKind::Stale,
];

/// Two client hosts, the server that they use, and the model of it.
struct Test {
    /// What is left to do.
    steps: vec::IntoIter<Step>,
    /// Of the choices in the present step.
    random: Random,
    server: Server,
    hosts: [Host; 2],
    model: Model,
    /// The last change counts that were seen.
    counts: BTreeMap<InodeId, ChangeCount>,
    /// The kinds of requests that were executed, and what others were refused with.
    executed: BTreeSet<&'static str>,
    refused: HashSet<ErrorKind>,
    /// Requests and what they are refused with are printed.
    told: bool,
    /// A listing is under way that is compared with changes.
    listing: bool,
    /// Inodes that there were once.
    gone: Vec<InodeId>,
    _dir: TempDir,
}

#[test]
fn every_answer_is_the_models() {
    for store in ENGINES {
        for_each_seed(SEEDS, |random| drop(compare(&random, store, stretched(STEPS))));
    }
}

/// The runs are worth something only if they reach every request and every refusal, some of which
/// happen twice in a thousand steps.
#[test]
fn a_long_run_reaches_every_request_and_every_refusal() {
    let test = compare(&Random::seeded(1), StoreKind::Memory, 2_500);
    assert_eq!(test.executed.len(), 17, "executed: {:?}", test.executed);
    let missing: Vec<_> = REFUSALS.iter().filter(|kind| !test.refused.contains(kind)).collect();
    assert!(missing.is_empty(), "nothing was refused with {missing:?}");
    assert!(test.model.nodes.len() > 20 && test.gone.len() > 20, "names come and go");
}

/// Takes so many steps, drawn from a seed. Of steps that fail only those are left without which
/// they do not, and these are taken a last time, with what they ask for printed.
#[expect(clippy::print_stdout, reason = "the test runner shows it beside the failure")]
fn compare(random: &Random, store: StoreKind, steps: usize) -> Test {
    let config = Config {
        cases: 1,
        max_shrink_iters: SHRINKS_MAX,
        max_shrink_time: SHRINKING_MAX_MS,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(random.number()),
        ..Config::default()
    };
    let ended = RefCell::new(None);
    let run = |steps| {
        ended.replace(Some(Test::start(store, steps, false).go_on_to_the_end()));
        Ok(())
    };
    match TestRunner::new(config).run(&Steps(steps), run) {
        Ok(()) => ended.into_inner().expect("it has run"),
        Err(TestError::Fail(why, left)) => {
            println!("{} of {steps} steps are left, on {}:", left.len(), store.name());
            drop(Test::start(store, left, true).go_on_to_the_end());
            panic!("it failed, and does not any more: {why}");
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

impl Test {
    fn start(store: StoreKind, steps: Vec<Step>, told: bool) -> Self {
        let dir = TempDir::new().unwrap();
        let server = Server::start(&dir.path().join("metadata"), store);
        register_targets(&server);
        let hosts = [Host::open(&server, 1), Host::open(&server, 2)];
        let shown = hosts[0].show(&server, InodeId::ROOT).unwrap().attributes;
        let model = Model::new(Node::new(FileKind::Directory, 0o755, (0, 0), shown.born));
        let mut test = Self {
            steps: steps.into_iter(),
            random: Random::seeded(0),
            server,
            hosts,
            model,
            counts: BTreeMap::new(),
            executed: BTreeSet::new(),
            refused: HashSet::new(),
            told,
            listing: false,
            gone: Vec::new(),
            _dir: dir,
        };
        // Everybody may begin.
        test.open_root();
        test
    }

    /// Takes all steps, and compares everything in the end.
    fn go_on_to_the_end(mut self) -> Self {
        for number in 1.. {
            if !self.step() {
                break;
            }
            if number % 100 == 0 {
                self.check();
            }
        }
        self.check();
        self.compare_all();
        self.server.restart();
        self.compare_all();
        self.server.contents().assert_equal(&rebuilt(&self.server.log_dir()), "in the end");
        self
    }

    /// The clock goes on, and one operation happens, if one is left.
    #[expect(clippy::print_stdout, reason = "the test runner shows it beside the failure")]
    fn step(&mut self) -> bool {
        let Some(step) = self.steps.next() else { return false };
        if self.told {
            println!("{step:?}");
        }
        // Another may be under way.
        let outer = mem::replace(&mut self.random, Random::seeded(step.seed));
        self.end_late_opens();
        self.server.time.advance(Duration::from_millis(self.random.within(1..3_000)));
        self.model.now = self.server.turn(|core| core.now());
        self.perform(step.operation);
        self.random = outer;
        true
    }

    /// Waits until nothing stays for opens that found their file gone: to the model, files are gone
    /// with their last name.
    fn end_late_opens(&self) {
        self.server.time.advance(late_opens::KEPT);
        self.server.turn(|core| core.drop_late().unwrap());
    }

    /// Runs a request at the server; sometimes twice, because a client that heard nothing sends it
    /// again.
    #[expect(clippy::print_stdout, reason = "the test runner shows it beside the failure")]
    fn run<R, T>(&mut self, host: usize, request: &R, operation: Run<R, T>) -> Answer<T>
    where
        R: Clone + Debug + Send + 'static,
        T: PartialEq + Debug + Send + 'static,
    {
        let answer = self.hosts[host].run(&self.server, request.clone(), operation);
        if self.told {
            let (request, answer) = (format!("{request:?}"), answer.as_ref().map(|_| ()));
            println!("    host {host}: {request:.400}: {answer:?}");
        }
        match &answer {
            Ok(_) => drop(self.executed.insert(std::any::type_name::<R>())),
            Err(kind) => drop(self.refused.insert(*kind)),
        }
        if percent(&self.random, 15) {
            let again = self.hosts[host].run(&self.server, request.clone(), operation);
            assert_eq!(answer, again, "the same request again");
        }
        answer
    }

    /// Compares an answer that shows an inode.
    fn expect_inode(&mut self, want: Answer<InodeId>, got: Answer<InodeReply>, what: &str) {
        match (want, got) {
            (Ok(id), Ok(reply)) => self.compare(id, &reply),
            (want, got) => assert_eq!(got.map(drop), want.map(drop), "{what}"),
        }
    }

    fn compare(&mut self, id: InodeId, reply: &InodeReply) {
        let (attributes, node) = (&reply.attributes, &self.model.nodes[&id]);
        let got = (attributes.inode, attributes.kind, attributes.mode, attributes.device);
        assert_eq!(got, (id, node.kind, node.mode, node.device), "{id}");
        let got = (attributes.uid, attributes.gid, attributes.links, attributes.size);
        let want = (node.uid, node.gid, self.model.links(id), self.model.size(id));
        assert_eq!(got, want, "owner, group, links and size of {id}");
        let got = (attributes.accessed, attributes.modified, attributes.changed, attributes.born);
        assert_eq!(got, (node.accessed, node.modified, node.changed, node.born), "times of {id}");
        assert_eq!(reply.symlink, node.target, "{id}");
        let content = reply.content.as_ref().map(|content| {
            assert_eq!((content.inode, content.origin_length), (id, 0));
            (content.generation.0, content.write_epoch.0, content.sparse)
        });
        let regular = node.kind == FileKind::Regular;
        let want = (node.generation, node.write_epoch, node.sparse);
        assert_eq!(content, regular.then_some(want), "content of {id}");
        if let Some(signed) = &reply.capability {
            let capability: Capability = codec::decode(&signed.body).unwrap();
            let writes = node.writers.contains_key(&capability.session);
            let rights = if writes { Rights::ReadWrite } else { Rights::Read };
            assert_eq!(capability.rights, rights, "{id}");
            assert_eq!(Some(&capability.content), reply.content.as_ref());
        }
        let last = self.counts.insert(id, attributes.change_count).unwrap_or_default();
        assert!(last <= attributes.change_count, "the change count of {id} went back");
    }

    /// The invariants, the queues of contents to free, and what the model has.
    fn check(&mut self) {
        self.end_late_opens();
        let queues = self.server.turn(|core| {
            invariants::check(core.view());
            [1, 2].map(|number| invariants::queue(core.view(), TargetId([number; 8])))
        });
        for queue in queues {
            assert_eq!(queue, self.model.freed, "exactly what was given up is to be freed");
        }
    }

    /// Every inode and every listing.
    fn compare_all(&mut self) {
        let ids: Vec<_> = self.model.nodes.keys().copied().collect();
        for id in ids {
            let got = self.hosts[0].show(&self.server, id);
            self.expect_inode(Ok(id), got, "everything that there is");
            if self.model.nodes[&id].kind == FileKind::Directory {
                self.list(id, &Caller::ROOT);
            }
        }
        for &id in &self.gone {
            let got = self.hosts[0].show(&self.server, id).map(drop);
            assert_eq!(got, Err(ErrorKind::Stale), "{id} is gone");
        }
    }

    /// Lists a directory in pages of any size and compares names, order and attributes.
    fn list(&mut self, id: InodeId, caller: &Caller) {
        let mut listed = Vec::new();
        let mut cookie = 0;
        let want = self.model.directory(id).map(|node| node.names.clone());
        let want = want.and_then(|names| self.model.may_read(caller, id).map(|()| names));
        loop {
            let page = match self.page(id, caller, cookie) {
                Ok(page) => page,
                Err(kind) => {
                    assert_eq!(want.map(drop), Err(kind), "the listing of {id}");
                    return;
                }
            };
            let parent = self.model.parent(id).unwrap_or(InodeId::ROOT);
            assert_eq!(page.parent, parent, "`..` of {id}");
            for entry in &page.entries {
                assert!(entry.cookie > cookie, "cookies grow");
                cookie = entry.cookie;
                listed.push((entry.name.clone(), entry.attributes.inode));
                let shown = self.hosts[0].show(&self.server, entry.attributes.inode).unwrap();
                assert_eq!(shown.attributes, entry.attributes, "a listing shows what stat does");
            }
            if page.last {
                break;
            }
            assert!(!page.entries.is_empty(), "a page that is not the last has entries");
        }
        assert_eq!(Ok(listed), want, "the listing of {id}");
    }

    fn page(&self, inode: InodeId, caller: &Caller, cookie: u64) -> Answer<DirectoryPage> {
        let entries_max = u32::try_from(self.random.within(1..8)).unwrap();
        let request = ReadDirectory { caller: caller.clone(), inode, cookie, entries_max };
        self.hosts[0].run(&self.server, request, ops::directory::read)
    }

    /// While a directory is listed it changes: what is there all the time appears exactly once.
    fn list_while_it_changes(&mut self, id: InodeId) {
        let Ok(before) = self.model.directory(id).map(|node| node.names.clone()) else { return };
        let (mut seen, mut cookie): (Vec<(FileName, InodeId)>, _) = (Vec::new(), 0);
        let mut moved = Vec::new();
        loop {
            let Ok(page) = self.page(id, &Caller::ROOT, cookie) else { return };
            cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
            let entries = page.entries.into_iter();
            seen.extend(entries.map(|entry| (entry.name, entry.attributes.inode)));
            if page.last {
                break;
            }
            let names = |test: &Self| {
                test.model.nodes.get(&id).map(|node| node.names.clone()).unwrap_or_default()
            };
            let earlier = names(self);
            // Without any left it is a listing like others.
            self.step();
            // A name that was taken and given again stands at the end.
            let later = names(self);
            moved.extend(earlier.iter().filter(|&name| !later.contains(name)).cloned());
            moved.extend(later.into_iter().filter(|name| !earlier.contains(name)));
            let still: Vec<_> = names(self);
            let order = |list: &[(FileName, InodeId)]| {
                list.iter().filter(|name| still.contains(name)).cloned().collect::<Vec<_>>()
            };
            let (left, right) = (order(&earlier), order(&still));
            moved.extend(left.into_iter().zip(right).filter(|(a, b)| a != b).map(|(a, _)| a));
        }
        for name in before.iter().filter(|name| !moved.contains(name)) {
            let times = seen.iter().filter(|other| *other == name).count();
            assert_eq!(times, 1, "{name:?} was there all the time");
        }
    }

    fn host(&self) -> usize {
        usize::from(percent(&self.random, 40))
    }

    fn caller(&self) -> Caller {
        match self.random.within(0..10) {
            0..3 => Caller { uid: 1000, gid: 100, groups: vec![7] },
            3..5 => Caller { uid: 1001, gid: 7, groups: vec![] },
            _ => Caller::ROOT,
        }
    }

    /// An inode of that kind, or rarely any other, or one that is gone.
    fn inode(&self, kind: FileKind) -> InodeId {
        if percent(&self.random, 3)
            && let Some(gone) = pick(&self.random, &self.gone)
        {
            return *gone;
        }
        let any = percent(&self.random, 5);
        let all = self.model.nodes.iter();
        let fit: Vec<_> =
            all.filter(|(_, node)| any || node.kind == kind).map(|(id, _)| *id).collect();
        *pick(&self.random, &fit).unwrap_or(&InodeId::ROOT)
    }

    /// One of few names, so that they meet.
    fn name(&self) -> FileName {
        FileName::parse(&[b'a' + u8::try_from(self.random.within(0..8)).unwrap()]).unwrap()
    }

    /// A name that exists, mostly.
    fn place(&self) -> (InodeId, FileName) {
        let directory = self.inode(FileKind::Directory);
        let names = self.model.nodes.get(&directory).map(|node| node.names.as_slice());
        match pick(&self.random, names.unwrap_or_default()) {
            Some((name, _)) if percent(&self.random, 90) => (directory, name.clone()),
            _ => (directory, self.name()),
        }
    }
}
