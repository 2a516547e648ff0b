//! A small pool of threads with `pread` and `pwrite`, for where io_uring is not allowed.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
};

use super::{DataFile, Disk, DiskError, Held, QUEUE_DEPTH, Request};

/// Threads for each disk. Four keep an NVMe drive busy with 1 MiB transfers.
const THREADS: usize = 4;

/// The blocking engine. Dropping it finishes what was submitted and ends its threads.
#[derive(Debug)]
pub struct BlockingDisk {
    /// `None` only while being dropped.
    requests: Option<SyncSender<Request>>,
    threads: Vec<JoinHandle<()>>,
}

impl BlockingDisk {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(file: DataFile) -> io::Result<Self> {
        let (requests, queue) = sync_channel(QUEUE_DEPTH + 1);
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..THREADS)
            .map(|_| {
                let (file, queue) = (file.clone(), Arc::clone(&queue));
                thread::Builder::new()
                    .name("disk-blocking".into())
                    .spawn(move || run(&file, &queue))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { requests: Some(requests), threads })
    }
}

impl Disk for BlockingDisk {
    fn submit(&self, request: Request) {
        let requests = self.requests.as_ref().expect("present until dropped");
        if let Err(refused) = requests.send(request) {
            refused.0.complete(Err(DiskError::Stopped));
        }
    }

    fn name(&self) -> &'static str {
        "blocking"
    }
}

impl Drop for BlockingDisk {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a disk thread ended with a panic");
            }
        }
    }
}

fn run(file: &DataFile, queue: &Mutex<Receiver<Request>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(request) = next else { return };
        execute(file, request);
    }
}

fn execute(file: &DataFile, mut request: Request) {
    let Request { pieces, buffer, .. } = &mut request;
    let result = match buffer {
        Held::Nothing => file.sync(),
        Held::Exclusive(buffer) => pieces.iter().try_for_each(|piece| {
            file.read(piece.offset, &mut buffer.as_mut_slice()[piece.range.clone()])
        }),
        Held::Shared(buffer) => pieces.iter().try_for_each(|piece| {
            file.write(piece.offset, &buffer.as_slice()[piece.range.clone()])
        }),
    };
    request.complete(result);
}
