//! A disk on which requests of one kind wait until they are told.

use std::sync::{Arc, Mutex};

use super::{Journal, Options, RING, SimulatedDisk, blank_disk, options};
use crate::disk::{Disk, DiskQueue, Operation, Request};

/// Takes requests of a kind and lets them wait; then the last comes first.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) disk: SimulatedDisk,
    kind: Operation,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Disk for Waiting {
    fn submit(&self, request: Request) {
        match request.operation() == self.kind {
            true => self.requests.lock().unwrap().push(request),
            false => self.disk.submit(request),
        }
    }

    fn name(&self) -> &'static str {
        "waiting"
    }
}

impl Waiting {
    pub(super) fn new(kind: Operation) -> Self {
        Self { disk: blank_disk(), kind, requests: Arc::default() }
    }

    /// A journal on it that is empty.
    pub(super) async fn open(&self) -> Journal {
        let disk = DiskQueue::new(Arc::new(self.clone()));
        let options = Options { disk, ..options(&self.disk) };
        Journal::open(options, RING.start()).await.unwrap().0
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    pub(super) fn release(&self) {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        requests.into_iter().rev().for_each(|request| self.disk.submit(request));
    }
}
