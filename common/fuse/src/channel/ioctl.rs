//! What is asked of `/dev/fuse` by ioctl. All the unsafe code of this crate.

#![expect(unsafe_code, reason = "an ioctl is checked by nobody but the driver")]

use std::os::fd::{AsFd, AsRawFd as _};

use rustix::{
    io::Errno,
    ioctl::{Opcode, Setter, ioctl, opcode},
};

/// Makes `device`, opened and not used yet, another descriptor of the connection of `connected`.
///
/// # Errors
/// When the kernel refuses: they are no FUSE devices, or `device` is connected already.
pub(super) fn clone_connection(device: impl AsFd, connected: impl AsFd) -> Result<(), Errno> {
    let number = u32::try_from(connected.as_fd().as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: the driver reads one u32 through the pointer that it gets, and writes nothing.
    let request = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: opcode and operand belong together, as above. Another driver's descriptor refuses the
    // opcode, whose magic number is FUSE's.
    unsafe { ioctl(device, request) }
}

/// FUSE's own among the ioctls.
const MAGIC: u8 = 229;
const CLONE: Opcode = opcode::read::<u32>(MAGIC, 0);
