//! The channel that every kernel has: `/dev/fuse`.
//!
//! Each receiver has a descriptor of its own where the kernel gives one (`FUSE_DEV_IOC_CLONE`):
//! requests that were read wait in a queue of that descriptor, and receivers do not meet. An answer
//! is one `writev` to the descriptor that its request was read from, by whichever thread has it.
//! The descriptor that was mounted is not read then: it is for notifications, and can be handed
//! over to another process. One more, which never blocks, is for readers that look for requests
//! instead of sleeping.

mod lookout;

use std::{
    fs::{File, OpenOptions},
    io::IoSlice,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    io::Errno,
};

use lookout::Lookout;

use super::{
    End, Origin, Received, Receiver, Responder,
    buffer::{Buffer, Incoming, Pool},
    ioctl,
};

/// The device's name.
pub const PATH: &str = "/dev/fuse";

/// A connection's descriptors. The first is the one that was mounted.
#[derive(Debug)]
pub struct DeviceChannel {
    devices: Arc<[OwnedFd]>,
    readers: usize,
    lookout: Arc<Lookout>,
}

impl DeviceChannel {
    /// A channel of `readers` receivers over the connection of `mounted`. While requests follow
    /// one another within `polling`, two receivers do not sleep in between.
    ///
    /// Where the device cannot be opened again, as by a user who mounted through the setuid helper,
    /// they share one descriptor.
    #[must_use]
    pub fn new(mounted: OwnedFd, readers: usize, polling: Duration) -> Self {
        let readers = readers.max(1);
        let mut devices = vec![mounted];
        while devices.len() < READABLE + readers {
            match open().and_then(|device| {
                ioctl::clone_connection(&device, &devices[0]).map(|()| device.into())
            }) {
                Ok(device) => devices.push(device),
                Err(error) => {
                    tracing::debug!(%error, "receivers share a descriptor of the device");
                    devices.truncate(1);
                    break;
                }
            }
        }
        let never_blocks = || {
            let looking = devices.get(LOOKING).ok_or(Errno::BADF)?;
            fcntl_setfl(looking, OFlags::RDWR | OFlags::NONBLOCK)
        };
        let polling = never_blocks().map_or(Duration::ZERO, |()| polling);
        let lookout = Arc::new(Lookout::new(readers, polling));
        Self { devices: devices.into(), readers, lookout }
    }

    /// The receivers, each for a thread of its own, which read to buffers of `pool`.
    #[must_use]
    pub fn receivers(&self, pool: &Arc<Pool>) -> Vec<Box<dyn Receiver>> {
        let all = (0..self.readers).map(|reader| -> Box<dyn Receiver> {
            Box::new(DeviceReceiver { looks: true, ..self.receiver(reader, pool) })
        });
        all.collect()
    }

    /// One receiver, for a thread of its own, which always sleeps when there is nothing.
    #[must_use]
    pub fn receiver(&self, reader: usize, pool: &Arc<Pool>) -> DeviceReceiver {
        let index = if self.devices.len() == 1 { 0 } else { READABLE + reader };
        let (devices, lookout) = (Arc::clone(&self.devices), Arc::clone(&self.lookout));
        let (buffer, pool) = (pool.take(), Arc::clone(pool));
        DeviceReceiver { devices, index, reader, lookout, looks: false, buffer, pool }
    }

    /// Whether receivers read descriptors of their own.
    #[must_use]
    pub fn has_clones(&self) -> bool {
        self.devices.len() > 1
    }

    /// Has all receivers end before their next request. Those that sleep in a system call end when
    /// a signal interrupts it.
    pub fn stop(&self) {
        self.lookout.stop();
    }

    /// Whether that receiver is about to read the device, or reads it.
    #[must_use]
    pub fn is_read_by(&self, reader: usize) -> bool {
        self.lookout.is_reading(reader)
    }

    /// Receivers may be used again, after all have ended.
    pub fn resume(&self) {
        self.lookout.resume();
    }

    /// The descriptor that was mounted.
    pub(super) fn mounted(&self) -> BorrowedFd<'_> {
        self.devices[0].as_fd()
    }

    /// Where answers go.
    #[must_use]
    pub fn responder(&self) -> DeviceResponder {
        DeviceResponder { devices: Arc::clone(&self.devices) }
    }
}

/// Opens the device, not connected yet.
///
/// # Errors
/// When there is none, or it may not be used.
pub fn open() -> Result<File, Errno> {
    let opened = OpenOptions::new().read(true).write(true).open(PATH);
    opened.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Reads one descriptor.
#[derive(Debug)]
pub struct DeviceReceiver {
    devices: Arc<[OwnedFd]>,
    index: usize,
    reader: usize,
    lookout: Arc<Lookout>,
    /// Whether it looks for requests together with others, instead of sleeping.
    looks: bool,
    buffer: Buffer,
    pool: Arc<Pool>,
}

impl Receiver for DeviceReceiver {
    fn receive(&mut self) -> Result<Received<'_>, Errno> {
        let arrived = if self.looks { self.lookout.arrive() } else { 0 };
        self.lookout.begins_reading(self.reader);
        let read = self.read();
        self.lookout.ends_reading(self.reader);
        let index = match read {
            Ok(index) => index,
            Err(Ended(end)) => {
                self.lookout.end();
                return end.map(Received::End);
            }
        };
        if self.looks {
            self.lookout.depart(self.reader, arrived);
        }
        let origin = Origin::Descriptor(u16::try_from(index).expect("few"));
        Ok(Received::Request(Incoming::new(origin, &mut self.buffer, None, &self.pool)))
    }
}

/// How receiving ends.
struct Ended(Result<End, Errno>);

impl DeviceReceiver {
    /// Reads a request into the buffer, and says from which descriptor.
    fn read(&mut self) -> Result<usize, Ended> {
        loop {
            if self.lookout.is_stopped() {
                return Err(Ended(Ok(End::Stopped)));
            }
            let index = if self.looks && self.lookout.looks() { LOOKING } else { self.index };
            match rustix::io::read(&self.devices[index], self.buffer.room()) {
                Ok(len) => {
                    self.buffer.set_len(len);
                    return Ok(index);
                }
                Err(Errno::AGAIN) => self.lookout.give_way(),
                // ENOENT: the request was taken back while it was being read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Err(Ended(Ok(End::Unmounted))),
                Err(Errno::CONNABORTED) => return Err(Ended(Ok(End::Aborted))),
                Err(error) => return Err(Ended(Err(error))),
            }
        }
    }
}

/// Writes to all descriptors.
#[derive(Debug)]
pub struct DeviceResponder {
    devices: Arc<[OwnedFd]>,
}

impl Responder for DeviceResponder {
    fn respond(&self, origin: Origin, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let Origin::Descriptor(index) = origin else { return Err(Errno::NOENT) };
        let device = self.devices.get(usize::from(index)).ok_or(Errno::NOENT)?;
        write_whole(device, parts)
    }

    /// The kernel has forgotten it already.
    fn release(&self, _: Origin, _: u64) {}

    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        write_whole(&self.devices[0], parts)
    }

    fn device(&self) -> BorrowedFd<'_> {
        self.devices[0].as_fd()
    }
}

/// The kernel takes a message as a whole, or says why not.
fn write_whole(device: &OwnedFd, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
    loop {
        match rustix::io::writev(device, parts) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Of the descriptors, behind the one that was mounted: the one that never blocks, and the first of
/// those that receivers sleep on.
const LOOKING: usize = 1;
const READABLE: usize = 2;
