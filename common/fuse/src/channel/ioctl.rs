//! What is asked of `/dev/fuse` by ioctl.

#![expect(unsafe_code, reason = "an ioctl is checked by nobody but the driver")]

use std::{
    ffi::c_void,
    os::fd::{AsFd, AsRawFd as _},
};

use rustix::{
    io::Errno,
    ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode},
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

/// Makes `file` a backing file of the connection of `device`, and gives its number.
///
/// # Errors
/// When the kernel refuses: EPERM without `CAP_SYS_ADMIN` or `PASSTHROUGH`, ELOOP where the file's
/// own file system is stacked too deep, EOPNOTSUPP from a kernel before 6.9 or for what is no file.
pub(crate) fn open_backing(device: impl AsFd, file: impl AsFd) -> Result<i32, Errno> {
    let request = OpenBacking { fd: file.as_fd().as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the driver reads the structure, whose layout is the header's, and writes nothing.
    unsafe { ioctl(device, request) }
}

/// Gives a backing file's number back. Files that are open with it keep it.
///
/// # Errors
/// ENOENT when there is no such number.
pub(crate) fn close_backing(device: impl AsFd, number: i32) -> Result<(), Errno> {
    // SAFETY: the driver reads one u32 through the pointer that it gets, and writes nothing.
    let request = unsafe { Setter::<CLOSE_BACKING, u32>::new(number.cast_unsigned()) };
    // SAFETY: opcode and operand belong together, as above.
    unsafe { ioctl(device, request) }
}

/// `fuse_backing_map`.
#[repr(C)]
struct OpenBacking {
    fd: i32,
    flags: u32,
    padding: u64,
}

// SAFETY: the opcode says the size of the structure that the pointer shows, and what comes back is
// in the returned number alone.
unsafe impl Ioctl for OpenBacking {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<Self>(MAGIC, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<i32, Errno> {
        Ok(out)
    }
}

/// FUSE's own among the ioctls.
const MAGIC: u8 = 229;
const CLONE: Opcode = opcode::read::<u32>(MAGIC, 0);
const CLOSE_BACKING: Opcode = opcode::write::<u32>(MAGIC, 2);
