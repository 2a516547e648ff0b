//! The channel that every kernel has: `/dev/fuse`.
//!
//! Each receiver has a descriptor of its own where the kernel gives one (`FUSE_DEV_IOC_CLONE`):
//! requests that were read wait in a queue of that descriptor, and receivers do not meet. An answer
//! is one `writev` to the descriptor that its request was read from, by whichever thread has it.

use std::{
    fs::{File, OpenOptions},
    io::IoSlice,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::io::Errno;

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
}

impl DeviceChannel {
    /// A channel of `readers` receivers over the connection of `mounted`.
    ///
    /// Where the device cannot be opened again, as by a user who mounted through the setuid helper,
    /// they share one descriptor.
    #[must_use]
    pub fn new(mounted: OwnedFd, readers: usize) -> Self {
        let mut devices = vec![mounted];
        while devices.len() < readers {
            match open().and_then(|device| {
                ioctl::clone_connection(&device, &devices[0]).map(|()| device.into())
            }) {
                Ok(device) => devices.push(device),
                Err(error) => {
                    tracing::debug!(%error, "receivers share a descriptor of the device");
                    break;
                }
            }
        }
        Self { devices: devices.into(), readers: readers.max(1) }
    }

    /// The receivers, each for a thread of its own, which read to buffers of `pool`.
    #[must_use]
    pub fn receivers(&self, pool: &Arc<Pool>) -> Vec<Box<dyn Receiver>> {
        let all = (0..self.readers)
            .map(|reader| -> Box<dyn Receiver> { Box::new(self.receiver(reader, pool)) });
        all.collect()
    }

    /// One receiver, for a thread of its own.
    #[must_use]
    pub fn receiver(&self, reader: usize, pool: &Arc<Pool>) -> DeviceReceiver {
        let index = reader % self.devices.len();
        let origin = Origin::Descriptor(u16::try_from(index).expect("as many as threads"));
        let (devices, pool) = (Arc::clone(&self.devices), Arc::clone(pool));
        DeviceReceiver { devices, index, origin, buffer: pool.take(), pool }
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
    origin: Origin,
    buffer: Buffer,
    pool: Arc<Pool>,
}

impl Receiver for DeviceReceiver {
    fn receive(&mut self) -> Result<Received<'_>, Errno> {
        loop {
            match rustix::io::read(&self.devices[self.index], self.buffer.room()) {
                Ok(len) => {
                    self.buffer.set_len(len);
                    let incoming = Incoming::new(self.origin, &mut self.buffer, None, &self.pool);
                    return Ok(Received::Request(incoming));
                }
                // ENOENT: the request was taken back while it was being read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Ok(Received::End(End::Unmounted)),
                Err(Errno::CONNABORTED) => return Ok(Received::End(End::Aborted)),
                Err(error) => return Err(error),
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
