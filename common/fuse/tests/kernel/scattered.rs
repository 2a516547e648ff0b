//! A file system that answers from all over the place: at once, from other threads, or not before
//! the caller gives up.

use std::{
    ffi::OsStr,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, SyncSender, channel},
    },
    thread,
};

use millrace_fuse_server::{
    Call, Data, Done, Errno, FileSystem, Payload, Reply,
    protocol::{
        attr::{AttrReply, EntryReply, GetAttr, SetAttr},
        data::{Read, Write, WriteReply},
        directory::DirectoryPage,
        node::{MkDir, Rename},
        open::{Create, CreateReply, Open, OpenReply, Release},
    },
};

use crate::memory::Memory;

type Job = Box<dyn FnOnce() + Send>;

/// [`Memory`], answered by several threads. What is named `stuck` is answered only when nobody
/// waits any more.
pub(crate) struct Scattered {
    memory: Arc<Memory>,
    jobs: Sender<Job>,
    stuck: SyncSender<()>,
}

impl Scattered {
    /// `stuck` is told whenever something waits for its interruption.
    pub(crate) fn new(stuck: SyncSender<()>) -> Self {
        let (jobs, waiting) = channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..ANSWERERS {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || answer(&waiting));
        }
        Self { memory: Arc::new(Memory::new(0, 0)), jobs, stuck }
    }

    /// Does it here or elsewhere, as chance has it.
    fn somewhere(&self, unique: u64, job: impl FnOnce(&Memory) + Send + 'static) {
        if chance(unique).is_multiple_of(2) {
            return job(&self.memory);
        }
        let memory = Arc::clone(&self.memory);
        self.jobs.send(Box::new(move || job(&memory))).expect("threads live as long as this");
    }

    /// The same, or does it not if the caller gives up before.
    fn patiently<A: 'static>(
        &self,
        unique: u64,
        reply: Reply<A>,
        job: impl FnOnce(&Memory, Reply<A>) + Send + 'static,
    ) {
        if !chance(unique).is_multiple_of(5) {
            return self.somewhere(unique, move |memory| job(memory, reply));
        }
        let (memory, cancellation) = (Arc::clone(&self.memory), reply.cancellation());
        let job = move || {
            for _ in 0..YIELDS {
                if cancellation.is_cancelled() {
                    return reply.fail(Errno::INTR);
                }
                thread::yield_now();
            }
            job(&memory, reply);
        };
        self.jobs.send(Box::new(job)).expect("threads live as long as this");
    }
}

fn answer(waiting: &Mutex<Receiver<Job>>) {
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        job();
    }
}

/// The bits of a request's number, mixed.
fn chance(unique: u64) -> u64 {
    (unique >> 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
}

macro_rules! delegated {
    ($($kind:ident $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&self, call: Call<'_>, $($argument: $type,)* reply: Reply<$answer>) {
            let call = call.without_extensions();
            self.$kind(call.unique, reply, move |memory, reply| {
                memory.$name(call, $($argument,)* reply);
            });
        }
    )*};
}

macro_rules! delegated_by_name {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(
            &self,
            call: Call<'_>,
            $($argument: $type,)*
            name: &OsStr,
            reply: Reply<$answer>,
        ) {
            let (call, name) = (call.without_extensions(), name.to_owned());
            self.somewhere(call.unique, move |memory| {
                memory.$name(call, $($argument,)* &name, reply);
            });
        }
    )*};
}

impl FileSystem for Scattered {
    fn forget(&self, node: u64, lookups: u64) {
        self.memory.forget(node, lookups);
    }

    fn lookup(&self, call: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        let (call, name) = (call.without_extensions(), name.to_owned());
        if name == "stuck" {
            reply.cancellation().on_cancel(move || reply.fail(Errno::INTR));
            return self.stuck.send(()).expect("the test listens");
        }
        self.patiently(call.unique, reply, move |memory, reply| memory.lookup(call, &name, reply));
    }

    fn rename(
        &self,
        call: Call<'_>,
        rename: Rename,
        name: &OsStr,
        new_name: &OsStr,
        reply: Reply<Done>,
    ) {
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let call = call.without_extensions();
        self.somewhere(call.unique, move |memory| {
            memory.rename(call, rename, &name, &new_name, reply);
        });
    }

    fn write(&self, call: Call<'_>, write: Write, data: Payload<'_>, reply: Reply<WriteReply>) {
        if chance(call.unique).is_multiple_of(2) {
            return self.memory.write(call, write, data, reply);
        }
        let (node, data) = (call.node, data.into_owned());
        self.somewhere(call.unique, move |memory| {
            reply.result(memory.write_bytes(node, &write, &data));
        });
    }

    delegated! {
        patiently getattr(getattr: GetAttr) -> AttrReply;
        patiently read(read: Read) -> Data;
        surely setattr(setattr: SetAttr) -> AttrReply;
        surely open(open: Open) -> OpenReply;
        surely release(release: Release) -> Done;
        surely opendir(open: Open) -> OpenReply;
        surely readdir(read: Read) -> DirectoryPage;
        surely readdirplus(read: Read) -> DirectoryPage;
        surely releasedir(release: Release) -> Done;
    }

    delegated_by_name! {
        create(create: Create) -> CreateReply;
        mkdir(mkdir: MkDir) -> EntryReply;
        unlink() -> Done;
        rmdir() -> Done;
    }
}

impl Scattered {
    fn surely<A: 'static>(
        &self,
        unique: u64,
        reply: Reply<A>,
        job: impl FnOnce(&Memory, Reply<A>) + Send + 'static,
    ) {
        self.somewhere(unique, move |memory| job(memory, reply));
    }
}

/// Threads that answer, besides those that read.
const ANSWERERS: usize = 3;
/// How long a patient operation waits for an interruption.
const YIELDS: usize = 20;
