//! Records what this kernel sends: `record MOUNTPOINT` (as root) prints one request of each kind as
//! hexadecimal bytes. `golden/` has its output, which the tests read.
//!
//! It mounts and answers by hand, below the session: what is recorded owes nothing to it.

use std::{
    error::Error,
    ffi::{CString, OsStr},
    fs::{self, File, OpenOptions},
    io::IoSlice,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use millrace_fuse_server::protocol::{
    attr::{Attr, AttrReply, EntryReply},
    data::{LSeekReply, WriteReply},
    directory::{DirectoryEntry, DirectoryPage},
    header::{Opcode, ReplyHeader, RequestHeader},
    init::{Init, InitFlags, InitReply},
    ioctl::{IoCtlReply, PollReply},
    lock::{FileLock, LockReply},
    open::{CreateReply, OpenFlags, OpenReply},
    operation::{Layout, Operation, Request},
    statfs::StatFsReply,
    statx::{StatXAttr, StatXReply},
};
use rustix::{
    fs::{
        AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom,
        StatxFlags, XattrFlags,
    },
    mount::{MountFlags, UnmountFlags},
};

fn main() -> Result<(), Box<dyn Error>> {
    let mountpoint = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: record MOUNTPOINT")?);
    let device: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/fuse")?.into();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = CString::new(data)?;
    rustix::mount::mount("record", &mountpoint, "fuse", MountFlags::empty(), Some(&*data))?;
    let (blocked, is_blocked) = channel();
    let server = thread::spawn(move || Recorder { device, blocked, waiting: None }.serve());
    let (driven, path) = (mountpoint.clone(), mountpoint);
    let driver = thread::spawn(move || -> Result<(), String> {
        drive(&driven).map_err(|error| error.to_string())?;
        let mut reader = Command::new("cat");
        let reader = reader.arg(driven.join(BLOCKED)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut reader = reader.spawn().map_err(|error| error.to_string())?;
        is_blocked.recv().map_err(|error| error.to_string())?;
        reader.kill().map_err(|error| error.to_string())?;
        reader.wait().map_err(|error| error.to_string())?;
        Ok(())
    });
    let driven = driver.join().expect("it returns errors");
    rustix::mount::unmount(&path, UnmountFlags::DETACH)?;
    let recorded = server.join().expect("it returns errors");
    driven?;
    let kernel = rustix::system::uname();
    #[expect(clippy::print_stdout, reason = "this is what it is for")]
    {
        println!("# Linux {}", kernel.release().to_string_lossy());
        for (opcode, bytes) in recorded {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{opcode:?} {hex}");
        }
    }
    Ok(())
}

/// One system call for each kind of request.
fn drive(root: &Path) -> Result<(), Box<dyn Error>> {
    let file = root.join("file");
    fs::metadata(&file)?;
    rustix::fs::statx(CWD, &file, AtFlags::STATX_FORCE_SYNC, StatxFlags::BTIME)?;
    rustix::fs::chmod(&file, Mode::from(0o640))?;
    fs::read_link(root.join("link"))?;
    std::os::unix::fs::symlink("target/of/it", root.join("new-link"))?;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(CWD, root.join("new-fifo"), fifo, Mode::from(0o600), 0)?;
    fs::create_dir(root.join("new-directory"))?;
    fs::remove_file(root.join("file"))?;
    fs::remove_dir(root.join("directory"))?;
    fs::rename(root.join("link"), root.join("new-name"))?;
    let (old, new) = (root.join("link"), root.join("new-name-2"));
    rustix::fs::renameat_with(CWD, &old, CWD, &new, RenameFlags::NOREPLACE)?;
    fs::hard_link(&file, root.join("new-hard-link"))?;
    rustix::fs::statvfs(root)?;
    drive_file(root, &file)?;
    let directory = File::open(root)?;
    directory.sync_all()?;
    drop(fs::read_dir(root)?.collect::<Vec<_>>());
    rustix::fs::access(&file, rustix::fs::Access::READ_OK)?;
    drop(File::create_new(root.join("new-file"))?);
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    drop(rustix::fs::open(root, flags, Mode::from(0o600))?);
    Ok(())
}

/// The same for an open file.
fn drive_file(root: &Path, file: &Path) -> Result<(), Box<dyn Error>> {
    let open = OpenOptions::new().read(true).write(true).open(file)?;
    rustix::io::pwrite(&open, b"written", 5)?;
    rustix::io::pread(&open, &mut [0; 100], 0)?;
    open.sync_data()?;
    rustix::fs::setxattr(file, "user.name", b"value", XattrFlags::CREATE)?;
    let mut value = [0_u8; 64];
    // What is answered is not what is looked at.
    rustix::fs::getxattr(file, "user.name", &mut value[..]).ok();
    rustix::fs::listxattr(file, &mut value[..]).ok();
    rustix::fs::removexattr(file, "user.name")?;
    rustix::fs::fcntl_lock(&open, FlockOperation::NonBlockingLockExclusive)?;
    rustix::fs::fcntl_lock(&open, FlockOperation::LockShared)?;
    rustix::fs::ioctl_getflags(&open).ok();
    let mut polled = [rustix::event::PollFd::new(&open, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&rustix::time::Timespec::default()))?;
    rustix::fs::fallocate(&open, FallocateFlags::KEEP_SIZE, 10, 20)?;
    rustix::fs::seek(&open, SeekFrom::Data(3))?;
    let other = OpenOptions::new().write(true).open(root.join("other"))?;
    rustix::fs::copy_file_range(&open, Some(&mut 1), &other, Some(&mut 2), 3)?;
    Ok(())
}

/// Answers requests, and keeps the first of each kind.
struct Recorder {
    device: OwnedFd,
    /// Told when a reader waits for an answer.
    blocked: Sender<()>,
    /// The reader's request.
    waiting: Option<u64>,
}

impl Recorder {
    fn serve(mut self) -> Vec<(Opcode, Vec<u8>)> {
        let mut recorded: Vec<(Opcode, Vec<u8>)> = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        while let Ok(len) = rustix::io::read(&self.device, &mut buffer[..]) {
            let bytes = &buffer[..len];
            let header = RequestHeader::of(bytes).expect("the kernel sends whole requests");
            let Some(opcode) = Opcode::from_number(header.opcode) else {
                self.answer(header.unique, -ENOSYS, &[]);
                continue;
            };
            if !recorded.iter().any(|(known, _)| *known == opcode) {
                recorded.push((opcode, bytes.to_vec()));
            }
            let layout = Layout { long_setxattr: true };
            let request = Request::decode(bytes, layout).expect("the kernel's are right");
            self.request(header, &request.operation);
        }
        recorded.sort_by_key(|(opcode, _)| opcode.number());
        recorded
    }

    fn request(&mut self, header: RequestHeader, operation: &Operation<'_>) {
        let unique = header.unique;
        let attr = AttrReply::new(attr(header.node), Duration::ZERO);
        match operation {
            Operation::Forget { .. } | Operation::BatchForget(_) => {}
            Operation::Interrupt { unique } => {
                if self.waiting.take() == Some(*unique) {
                    self.answer(*unique, -EINTR, &[]);
                }
            }
            Operation::Init(init) => self.answer(unique, 0, &init_reply(init).encode()),
            Operation::Lookup { name } => self.lookup(unique, name),
            Operation::GetAttr(_) | Operation::SetAttr(_) => {
                self.answer(unique, 0, &attr.encode());
            }
            Operation::StatX(_) => {
                let attr = StatXAttr { mask: 0xFFF, mode: 0o100_644, ..StatXAttr::default() };
                let attr = StatXAttr { nlink: 1, ino: header.node, ..attr };
                self.answer(unique, 0, &StatXReply { attr, ..StatXReply::default() }.encode());
            }
            Operation::ReadLink => self.answer(unique, 0, b"file"),
            Operation::SymLink { .. } => self.entry(unique, LINK),
            Operation::MkNod { .. } => self.entry(unique, FIFO),
            Operation::MkDir { .. } => self.entry(unique, DIRECTORY),
            Operation::Link { .. } => self.entry(unique, FILE),
            Operation::Open(_) | Operation::OpenDir(_) => {
                self.answer(unique, 0, &open_reply().encode());
            }
            Operation::Create { .. } | Operation::TmpFile(_) => {
                let entry = EntryReply::new(NEW_FILE, self::attr(NEW_FILE), Duration::ZERO);
                self.answer(unique, 0, &CreateReply { entry, open: open_reply() }.encode());
            }
            Operation::Read(_) if header.node == BLOCKED_FILE => {
                self.waiting = Some(unique);
                self.blocked.send(()).ok();
            }
            Operation::Read(_) => self.answer(unique, 0, &[7; 20]),
            Operation::ReadDir(read) | Operation::ReadDirPlus(read) => {
                let mut page = DirectoryPage::new(read.size);
                let entry = DirectoryEntry { ino: 9, offset: 1, ..DirectoryEntry::default() };
                if read.offset == 0 && matches!(operation, Operation::ReadDir(_)) {
                    page.push(entry, OsStr::new("file"));
                } else if read.offset == 0 {
                    page.push_plus(&EntryReply::default(), entry, OsStr::new("file"));
                }
                self.answer(unique, 0, page.as_bytes());
            }
            Operation::Write { write, .. } => {
                self.answer(unique, 0, &WriteReply { size: write.size }.encode());
            }
            other => self.rest(unique, other),
        }
    }

    fn rest(&self, unique: u64, operation: &Operation<'_>) {
        match operation {
            Operation::StatFs => {
                self.answer(
                    unique,
                    0,
                    &StatFsReply { name_max: 255, ..Default::default() }.encode(),
                );
            }
            Operation::GetXAttr { .. } => self.answer(unique, -ENODATA, &[]),
            Operation::ListXAttr(_) => self.answer(unique, 0, b""),
            Operation::GetLk(_) => {
                let lock = FileLock { kind: FileLock::UNLOCKED, ..FileLock::default() };
                self.answer(unique, 0, &LockReply { lock }.encode());
            }
            Operation::IoCtl { .. } => self.answer(unique, 0, &IoCtlReply::default().encode()),
            Operation::Poll(_) => self.answer(unique, 0, &PollReply { events: 1 }.encode()),
            Operation::LSeek(_) => self.answer(unique, 0, &LSeekReply { offset: 3 }.encode()),
            // Both are 8 bytes, and begin with the number.
            Operation::CopyFileRange(copy) | Operation::CopyFileRange64(copy) => {
                let size = u32::try_from(copy.length).unwrap_or(u32::MAX);
                self.answer(unique, 0, &WriteReply { size }.encode());
            }
            _ => self.answer(unique, 0, &[]),
        }
    }

    /// Names that begin with `new` are not there.
    fn lookup(&self, unique: u64, name: &OsStr) {
        match name.to_str() {
            Some(BLOCKED) => self.entry(unique, BLOCKED_FILE),
            Some("link") => self.entry(unique, LINK),
            Some("directory") => self.entry(unique, DIRECTORY),
            Some("other") => self.entry(unique, OTHER_FILE),
            Some("file") => self.entry(unique, FILE),
            _ => self.answer(unique, -ENOENT, &[]),
        }
    }

    fn entry(&self, unique: u64, node: u64) {
        let entry = EntryReply::new(node, attr(node), Duration::ZERO);
        self.answer(unique, 0, &entry.encode());
    }

    fn answer(&self, unique: u64, error: i32, body: &[u8]) {
        let len = u32::try_from(ReplyHeader::LEN + body.len()).expect("short");
        let header = ReplyHeader { len, error, unique }.encode();
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        rustix::io::writev(&self.device, &parts).ok();
    }
}

/// Everything is taken, but what would hide requests: without FORGETs nothing is forgotten.
fn init_reply(init: &Init) -> InitReply {
    let hiding = InitFlags::WRITEBACK_CACHE
        .with(InitFlags::SPLICE_READ)
        .with(InitFlags::SPLICE_WRITE)
        .with(InitFlags::SPLICE_MOVE)
        .with(InitFlags::READDIRPLUS_AUTO)
        .with(InitFlags::OVER_IO_URING)
        .with(InitFlags::PASSTHROUGH)
        .with(InitFlags::REQUEST_TIMEOUT)
        .with(InitFlags::MAP_ALIGNMENT)
        .with(InitFlags::POSIX_ACL)
        .with(InitFlags::INIT_RESERVED)
        .with(InitFlags::ALLOW_IDMAP)
        .with(InitFlags::SUBMOUNTS);
    let reply = InitReply {
        major: init.major,
        minor: init.minor,
        max_readahead: init.max_readahead,
        max_background: 12,
        congestion_threshold: 9,
        max_write: 128 * 1024,
        time_gran: 1,
        max_pages: 32,
        ..InitReply::default()
    };
    reply.with_flags(init.offered().without(hiding))
}

fn open_reply() -> OpenReply {
    OpenReply { handle: 77, flags: OpenFlags::DIRECT_IO, backing: 0 }
}

fn attr(node: u64) -> Attr {
    let mode = match node {
        1 | DIRECTORY => 0o040_755,
        LINK => 0o120_777,
        FIFO => 0o010_600,
        _ => 0o100_644,
    };
    Attr { ino: node, size: 100, mode, nlink: 2, ..Attr::default() }
}

const FILE: u64 = 2;
const LINK: u64 = 3;
const DIRECTORY: u64 = 4;
const FIFO: u64 = 5;
const OTHER_FILE: u64 = 6;
const NEW_FILE: u64 = 7;
const BLOCKED_FILE: u64 = 8;
const BLOCKED: &str = "blocked";
const ENOENT: i32 = 2;
const EINTR: i32 = 4;
const ENOSYS: i32 = 38;
const ENODATA: i32 = 61;
