//! Client hosts at the operations of a running engine, without a network; and the targets that a
//! file system needs before files can be made.

use millrace_metadata_server::{
    command::{Command, Spilled},
    engine::Core,
    namespace::tree,
    ops::{self, Client, Need, Step, session},
    store::{
        keys,
        records::{self, TrimRecord},
    },
};
use millrace_protocol::{
    capability::Content,
    cluster::{RegisterHost, TargetReport},
    lease::AwaitRecalls,
    metadata::{
        Close, Create, GetInode, InodeReply, Lookup, NewNode, Open, OpenMode, Remove, Rename,
        RenameMode,
    },
    session::{Caller, OpenSession, Operation, Role},
};
use millrace_types::{
    ByteLen, ErrorKind, Failure, FileName, GIB, HostId, InodeId, SessionId, TargetId,
};

use crate::engine::Server;

/// A client host with a session.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) client: Client,
    pub(crate) session: SessionId,
    pub(crate) sequence: u64,
}

/// An operation of [`ops`].
pub(crate) type Run<R, T> = fn(&mut Core, &Client, &R) -> Result<Step<T>, Failure>;

pub(crate) fn client(number: u8) -> Client {
    Client {
        role: Role::Client,
        host: HostId([number; 16]),
        fingerprint: [number; 32],
        subtree: None,
        squash_root: false,
        settled: Vec::new(),
    }
}

/// Two targets of one daemon.
pub(crate) fn register_targets(server: &Server) {
    let request = RegisterHost {
        addresses: vec!["127.0.0.1:1".to_owned()],
        host_name: "storage".to_owned(),
        targets: vec![target_report(1), target_report(2)],
    };
    run(server, &targets_daemon(), request, ops::cluster::register).unwrap();
}

/// What one of [`register_targets`] says of itself.
pub(crate) fn target_report(number: u8) -> TargetReport {
    TargetReport {
        id: TargetId([number; 8]),
        capacity: ByteLen(GIB),
        used: ByteLen(0),
        inode_max: InodeId(0),
        loss_count: 0,
        bad_blocks: 0,
        blank: false,
    }
}

/// The daemon that serves these.
pub(crate) fn targets_daemon() -> Client {
    Client { role: Role::Target, ..client(200) }
}

/// Runs an operation until it is done, with targets that confirm every shrink at once, and writers
/// who hear of every cut.
pub(crate) fn run<R: Send + 'static, T: Send + 'static>(
    server: &Server,
    client: &Client,
    request: R,
    operation: Run<R, T>,
) -> Result<T, Failure> {
    let client = client.clone();
    let listeners = server.listeners.lock().unwrap().clone();
    server.try_turn(move |core| {
        loop {
            match operation(core, &client, &request)? {
                Step::Done(reply) => return Ok(reply),
                Step::Need(Need::Trim(inode)) => confirm_trim(core, inode),
                Step::Need(Need::Spill { inode, .. }) => confirm_spill(core, inode),
                Step::Need(Need::Heard(wait)) => {
                    listeners.iter().for_each(|(client, session)| hear(core, client, *session));
                    assert!(wait.is_over(), "every writer has heard");
                }
                Step::Need(other) => panic!("nothing is linked here: {other:?}"),
            }
        }
    })
}

fn confirm_trim(core: &mut Core, inode: InodeId) {
    let trim: TrimRecord = records::read(core.view(), &keys::trim(inode)).unwrap().unwrap();
    let write_epoch = trim.write_epoch;
    core.execute(None, Command::Trimmed { inode, write_epoch }).unwrap();
}

pub(crate) fn confirm_spill(core: &mut Core, inode: InodeId) {
    let content = tree::inode(core.view(), inode).unwrap().content().unwrap();
    let Content { generation, write_epoch, .. } = content;
    core.execute(None, Command::Spilled(Spilled { inode, generation, write_epoch })).unwrap();
}

/// The session listens, and has dealt with what it hears; nobody does once it has ended.
fn hear(core: &mut Core, client: &Client, session: SessionId) {
    let incarnation = core.incarnation();
    let mut request = AwaitRecalls { session, incarnation, acknowledged: 0 };
    if ops::lease::listen(core, client, &request, false).is_ok() {
        request.acknowledged = ops::lease::recalls(core, client, session).unwrap().through;
        ops::lease::listen(core, client, &request, false).unwrap();
    }
}

pub(crate) fn name(text: &str) -> FileName {
    FileName::parse(text.as_bytes()).unwrap()
}

impl Host {
    pub(crate) fn open(server: &Server, number: u8) -> Self {
        Self::open_as(server, client(number))
    }

    pub(crate) fn open_as(server: &Server, client: Client) -> Self {
        let request = OpenSession { nonce: 1, host_name: "client".to_owned() };
        let session = run(server, &client, request, session::open).unwrap().session;
        server.listeners.lock().unwrap().push((client.clone(), session));
        Self { client, session, sequence: 0 }
    }

    /// The next operation of a client that waits for each answer.
    pub(crate) fn operation(&mut self) -> Operation {
        self.sequence += 1;
        self.numbered(self.sequence, self.sequence)
    }

    pub(crate) fn numbered(&self, sequence: u64, lowest_pending: u64) -> Operation {
        Operation { session: self.session, sequence, lowest_pending }
    }

    pub(crate) fn run<R: Send + 'static, T: Send + 'static>(
        &self,
        server: &Server,
        request: R,
        operation: Run<R, T>,
    ) -> Result<T, ErrorKind> {
        run(server, &self.client, request, operation).map_err(|failure| failure.kind)
    }

    /// Makes something in `parent`.
    pub(crate) fn make(
        &mut self,
        server: &Server,
        parent: InodeId,
        text: &str,
        node: NewNode,
    ) -> Result<InodeReply, ErrorKind> {
        let request = self.create(parent, text, node);
        self.run(server, request, ops::create::create)
    }

    /// A request that makes something of root's, for everybody to write.
    pub(crate) fn create(&mut self, parent: InodeId, text: &str, node: NewNode) -> Create {
        Create {
            caller: Caller::ROOT,
            operation: self.operation(),
            parent,
            name: name(text),
            node,
            mode: 0o777,
            open: false,
            exclusive: true,
        }
    }

    pub(crate) fn remove(&mut self, parent: InodeId, text: &str, directory: bool) -> Remove {
        let operation = self.operation();
        Remove { caller: Caller::ROOT, operation, parent, name: name(text), directory }
    }

    pub(crate) fn rename(&mut self, from: (InodeId, &str), to: (InodeId, &str)) -> Rename {
        Rename {
            caller: Caller::ROOT,
            operation: self.operation(),
            source_parent: from.0,
            source_name: name(from.1),
            target_parent: to.0,
            target_name: name(to.1),
            mode: RenameMode::Replace,
        }
    }

    pub(crate) fn open_write(&mut self, inode: InodeId, truncate: bool) -> Open {
        let (caller, operation) = (Caller::ROOT, self.operation());
        Open { caller, operation, inode, mode: OpenMode::Write, truncate, reopen: false }
    }

    pub(crate) fn close_write(&mut self, inode: InodeId) -> Close {
        Close { operation: self.operation(), inode, mode: OpenMode::Write }
    }

    pub(crate) fn lookup(
        &self,
        server: &Server,
        parent: InodeId,
        text: &str,
    ) -> Result<InodeReply, ErrorKind> {
        let request = Lookup { caller: Caller::ROOT, parent, name: name(text) };
        self.run(server, request, ops::lookup::lookup)
    }

    pub(crate) fn show(&self, server: &Server, inode: InodeId) -> Result<InodeReply, ErrorKind> {
        let request = GetInode { caller: Caller::ROOT, session: Some(self.session), inode };
        self.run(server, request, ops::lookup::inode)
    }
}
