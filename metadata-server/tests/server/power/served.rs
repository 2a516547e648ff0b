//! The simulated disk as a file system that is really mounted, so that whatever does its own I/O
//! writes to it: a FUSE server in this process.
//!
//! Each write, new length, name, removal and sync reaches the disk as one step when it is made:
//! the kernel keeps nothing back, and reads nothing from its own cache. A mount belongs to one run.
//! When that has ended every request fails with EIO, also those of threads that a store has left
//! behind; the next run has a mount of its own, elsewhere.
//!
//! Mounting needs root and `/dev/fuse`. Without them the tests fail, unless
//! `MILLRACE_TEST_WITHOUT_MOUNTS` is set: then they say so and pass.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::Write as _,
    num::NonZero,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::MutexGuard,
    thread,
    time::{Duration, Instant},
};

use millrace_fuse_server::{
    Call, Channel, Data, Done, Errno, FileSystem, MountOptions, Payload, Reply, Running, Session,
    SessionOptions,
    protocol::{
        attr::{Attr, AttrReply, EntryReply, GetAttr, SetAttr, SetAttrFields},
        data::{FAllocate, Read, Write, WriteReply},
        directory::{DirectoryEntry, DirectoryPage, file_type},
        node::{MkDir, Rename, RenameFlags},
        open::{Create, CreateReply, FSync, FSyncFlags, Open, OpenFlags, OpenReply, Release},
        statfs::StatFsReply,
    },
};
use millrace_runtime::Random;
use rustix::{
    fs::{FlockOperation, flock},
    mount::{UnmountFlags, unmount},
};
use tempfile::TempDir;

use super::{
    disk::{Disk, Ending, Inode, Lie},
    world::World,
};

/// The mount of one run. It is taken away when this is dropped, whoever uses it.
#[derive(Debug)]
pub(crate) struct Mount {
    running: Option<Running<Served>>,
    path: PathBuf,
}

impl Mount {
    /// Mounts the disk on a new directory for the run that it is in.
    pub(crate) fn new(world: &World, path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        let served = Served { world: world.clone(), run: world.run() };
        let options = SessionOptions {
            channel: Channel::Device,
            // Requests are answered one after the other.
            readers: NonZero::new(1),
            ..SessionOptions::default()
        };
        let session = Session::mount(served, &path, &MountOptions::new("power"), &options).unwrap();
        Self { running: Some(session.spawn().unwrap()), path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        match running.mountpoint().abort() {
            Ok(()) => drop(running.join()),
            Err(error) => left_behind(&error),
        }
    }
}

#[expect(clippy::print_stderr, reason = "a destructor cannot fail the test")]
fn left_behind(error: &std::io::Error) {
    eprintln!("a simulated disk stays mounted: {error}");
}

/// For mounts: where the script that runs the tests looks for those that a killed test has left.
pub(crate) fn place_for_mounts() -> TempDir {
    let parent = env::var_os("MILLRACE_TEST_DIR").map_or_else(env::temp_dir, PathBuf::from);
    TempDir::new_in(parent).unwrap()
}

/// Whether the disk can be mounted here. If not, that has to be allowed.
#[expect(clippy::print_stderr, reason = "a test that is passed over must not look like a success")]
pub(crate) fn can_mount() -> bool {
    if rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        return true;
    }
    let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_MOUNTS").is_some();
    assert!(may_lack, "not root, or no /dev/fuse, so no simulated disk can be mounted");
    eprintln!("SKIPPED: not root, or no /dev/fuse, so no simulated disk can be mounted");
    false
}

/// What a mount serves: the disk, as long as a run lasts.
#[derive(Debug)]
struct Served {
    world: World,
    run: u64,
}

impl Served {
    fn disk(&self) -> Result<MutexGuard<'_, Disk>, Errno> {
        self.world.disk_in(self.run)
    }

    /// Does something with an inode of the disk, as long as the run lasts.
    fn with<T>(
        &self,
        node: u64,
        work: impl FnOnce(&mut Disk, Inode) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        work(&mut *self.disk()?, inode(node))
    }

    fn make(&self, call: &Call<'_>, name: &OsStr, is_directory: bool) -> Result<EntryReply, Errno> {
        self.with(call.node, |disk, directory| {
            let made = disk.make(directory, name, is_directory)?;
            Ok(entry(disk, made))
        })
    }

    fn rename_to(
        &self,
        call: &Call<'_>,
        rename: &Rename,
        name: &OsStr,
        new_name: &OsStr,
    ) -> Result<(), Errno> {
        if rename.flags != RenameFlags::EMPTY {
            return Err(Errno::INVAL);
        }
        let to = (inode(rename.new_directory), new_name);
        self.with(call.node, |disk, directory| disk.rename((directory, name), to))
    }

    fn list(&self, directory: u64, read: &Read) -> Result<DirectoryPage, Errno> {
        let mut page = DirectoryPage::new(read.size);
        self.with(directory, |disk, directory| {
            let mut found: Vec<_> = disk.list(directory).collect();
            // So that who removes what he has seen goes on behind it.
            found.sort_by_key(|(_, inode)| *inode);
            for (name, inode) in found {
                let ino = node(inode);
                let file_type = file_type(mode(disk, inode));
                let entry = DirectoryEntry { ino, offset: ino, name_len: 0, file_type };
                if ino > read.offset && !page.push(entry, name) {
                    break;
                }
            }
            Ok(page)
        })
    }
}

/// The kernel has no 0, and the root is 1.
fn inode(node: u64) -> Inode {
    usize::try_from(node - 1).unwrap()
}

fn node(inode: Inode) -> u64 {
    inode as u64 + 1
}

fn mode(disk: &Disk, inode: Inode) -> u32 {
    if disk.is_directory(inode) { 0o040_700 } else { 0o100_600 }
}

fn attr(disk: &Disk, inode: Inode) -> Attr {
    let size = disk.len(inode);
    let (mode, blocks) = (mode(disk, inode), size.div_ceil(512));
    Attr { ino: node(inode), size, blocks, mode, nlink: 1, blksize: 4096, ..Attr::default() }
}

fn entry(disk: &Disk, inode: Inode) -> EntryReply {
    EntryReply::new(node(inode), attr(disk, inode), VALID)
}

impl FileSystem for Served {
    fn lookup(&self, call: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        reply.result(self.with(call.node, |disk, directory| {
            let found = disk.find(directory, name)?;
            Ok(entry(disk, found))
        }));
    }

    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        reply.result(
            self.with(call.node, |disk, inode| Ok(AttrReply::new(attr(disk, inode), VALID))),
        );
    }

    fn setattr(&self, call: Call<'_>, setattr: SetAttr, reply: Reply<AttrReply>) {
        reply.result(self.with(call.node, |disk, inode| {
            if setattr.valid.contains(SetAttrFields::SIZE) {
                disk.set_len(inode, setattr.size)?;
            }
            Ok(AttrReply::new(attr(disk, inode), VALID))
        }));
    }

    fn mkdir(&self, call: Call<'_>, _: MkDir, name: &OsStr, reply: Reply<EntryReply>) {
        reply.result(self.make(&call, name, true));
    }

    fn unlink(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        reply.result(self.with(call.node, |disk, directory| disk.remove(directory, name)));
    }

    fn rmdir(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        reply.result(self.with(call.node, |disk, directory| disk.remove(directory, name)));
    }

    fn rename(
        &self,
        call: Call<'_>,
        rename: Rename,
        name: &OsStr,
        new_name: &OsStr,
        reply: Reply<Done>,
    ) {
        reply.result(self.rename_to(&call, &rename, name, new_name));
    }

    fn open(&self, _: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        reply.result(self.disk().map(|_| OPENED));
    }

    fn create(&self, call: Call<'_>, _: Create, name: &OsStr, reply: Reply<CreateReply>) {
        let made = self.make(&call, name, false);
        reply.result(made.map(|entry| CreateReply { entry, open: OPENED }));
    }

    fn read(&self, call: Call<'_>, read: Read, reply: Reply<Data>) {
        let found = self.disk().and_then(|disk| {
            let bytes = disk.read(inode(call.node), read.offset, u64::from(read.size))?;
            Ok(bytes.to_vec())
        });
        match found {
            Ok(bytes) => reply.send(&bytes),
            Err(error) => reply.fail(error),
        }
    }

    fn write(&self, call: Call<'_>, write: Write, data: Payload<'_>, reply: Reply<WriteReply>) {
        let written = self.with(call.node, |disk, file| disk.write(file, write.offset, &data));
        reply.result(written.map(|()| WriteReply { size: write.size }));
    }

    fn statfs(&self, _: Call<'_>, reply: Reply<StatFsReply>) {
        reply.send(&StatFsReply {
            blocks: 1 << 24,
            free: 1 << 24,
            available: 1 << 24,
            files: 1 << 20,
            files_free: 1 << 20,
            block_size: 4096,
            name_max: 255,
            fragment_size: 4096,
        });
    }

    fn release(&self, _: Call<'_>, _: Release, reply: Reply<Done>) {
        reply.done();
    }

    fn fsync(&self, call: Call<'_>, fsync: FSync, reply: Reply<Done>) {
        let data_only = fsync.flags.contains(FSyncFlags::DATA_ONLY);
        reply.result(self.with(call.node, |disk, file| disk.sync_file(file, data_only)));
    }

    fn opendir(&self, _: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        reply.result(self.disk().map(|_| OpenReply::default()));
    }

    fn readdir(&self, call: Call<'_>, read: Read, reply: Reply<DirectoryPage>) {
        match self.list(call.node, &read) {
            Ok(page) => reply.send(&page),
            Err(error) => reply.fail(error),
        }
    }

    fn releasedir(&self, _: Call<'_>, _: Release, reply: Reply<Done>) {
        reply.done();
    }

    fn fsyncdir(&self, call: Call<'_>, _: FSync, reply: Reply<Done>) {
        reply.result(self.with(call.node, Disk::sync_directory));
    }

    /// Room, which a disk may give; nothing is asked of what was in it.
    fn fallocate(&self, call: Call<'_>, fallocate: FAllocate, reply: Reply<Done>) {
        reply.result(self.with(call.node, |disk, file| match fallocate.mode {
            FALLOC_KEEP_SIZE => Ok(()),
            0 if fallocate.offset + fallocate.length <= disk.len(file) => Ok(()),
            0 => disk.set_len(file, fallocate.offset + fallocate.length),
            _ => Err(Errno::OPNOTSUPP),
        }));
    }
}

/// Nobody else changes anything, so that the kernel may believe what it has seen.
const VALID: Duration = Duration::from_secs(3600);
/// Each read and write comes here when it is made, and nobody asks when a file is closed: a process
/// that ends closes its files when its threads that serve are no more, and would wait for them.
const OPENED: OpenReply = OpenReply { handle: 0, flags: FILE_FLAGS, backing: 0 };
const FILE_FLAGS: OpenFlags = OpenFlags::DIRECT_IO.with(OpenFlags::NOFLUSH);
const FALLOC_KEEP_SIZE: u32 = 1;

#[test]
fn what_goes_through_a_mount_is_on_the_disk_at_once_and_on_stable_storage_after_a_sync() {
    if !can_mount() {
        return;
    }
    let root = place_for_mounts();
    let world = World::new(Random::seeded(1), Lie::Nothing);
    let first = Mount::new(&world, root.path().join("first"));
    let dir = first.path().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("new"), b"old, to be cut").unwrap();
    fs::rename(dir.join("new"), dir.join("file")).unwrap();
    let open = |dir: &Path| fs::File::options().append(true).open(dir.join("file")).unwrap();
    let mut file = open(&dir);
    file.set_len(3).unwrap();
    file.write_all(b" and more").unwrap();
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    flock(&file, exclusive).unwrap();
    assert_eq!(flock(open(&dir), exclusive), Err(Errno::WOULDBLOCK));
    world.end(Ending::Kill);
    assert_eq!(file.write_all(b"late").unwrap_err().raw_os_error(), Some(5));
    assert!(fs::read(dir.join("file")).is_err() && fs::remove_file(dir.join("file")).is_err());

    let second = Mount::new(&world, root.path().join("second"));
    let dir = second.path().join("dir");
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"old and more");
    let mut file = open(&dir);
    flock(&file, exclusive).unwrap();
    for synced in [second.path(), &dir, &dir.join("file")] {
        fs::File::open(synced).unwrap().sync_all().unwrap();
    }
    // This may be lost.
    file.write_all(&[b'.'; 100]).unwrap();
    fs::write(dir.join("other"), b"").unwrap();
    world.end(Ending::Power);

    let third = Mount::new(&world, root.path().join("third"));
    let shown = fs::read(third.path().join("dir/file")).unwrap();
    assert!(shown.starts_with(b"old and more"), "{shown:?}");
}

const PLACE: &str = "MILLRACE_SERVED_PLACE";

/// Mounts a disk, and has a file of it open.
#[test]
#[ignore = "the process that `a_process_that_serves_its_own_files_can_be_killed` kills"]
fn has_a_file_open_until_it_is_killed() {
    let place = env::var_os(PLACE).expect("the test that starts this one says where");
    let place = PathBuf::from(place);
    let world = World::new(Random::seeded(1), Lie::Nothing);
    let mount = Mount::new(&world, place.join("mount"));
    let _open = fs::File::create(mount.path().join("file")).unwrap();
    fs::write(place.join("began"), b"").unwrap();
    loop {
        thread::park();
    }
}

/// Otherwise its last thread would ask those that have served, when it closes the file, and wait
/// for an answer without an end.
#[test]
fn a_process_that_serves_its_own_files_can_be_killed() {
    if !can_mount() {
        return;
    }
    let root = place_for_mounts();
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "power::served::has_a_file_open_until_it_is_killed", "--ignored"]);
    child.env(PLACE, root.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    while !root.path().join("began").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it does not begin");
        thread::yield_now();
    }
    child.kill().unwrap();
    let killed = Instant::now();
    let mut ended = None;
    while ended.is_none() && killed.elapsed() < ENDED_AFTER {
        ended = child.try_wait().unwrap();
        thread::yield_now();
    }
    // This ends what waits.
    unmount(root.path().join("mount"), UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    child.wait().unwrap();
    assert!(ended.is_some(), "it has waited for itself");
}

/// On a busy machine too.
const ENDED_AFTER: Duration = Duration::from_secs(60);
