//! What goes from a server to its successor over a Unix socket, in this order:
//!
//! | bytes | from | what |
//! |------:|------|------|
//! | 72 | predecessor | `Head`, and with it descriptors: the device, then the file system's |
//! | `path_len` | predecessor | the mount point |
//! | `state_len` | predecessor | the file system's own state |
//! | 1 | successor | `READY`: it has everything, and could go on |
//! | 1 | predecessor | `GO`: it has let go |
//!
//! Numbers are in the byte order of the machine, on which both are. Until `GO` the predecessor can
//! go on by itself, and the successor must not.

#![expect(unreachable_pub, reason = "what declares a structure declares it for everybody")]

use std::{
    ffi::OsString,
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::Terms;
use crate::{
    protocol::init::InitFlags,
    wire::{Wire as _, wire_struct},
};

/// What a file system leaves to its successor: bytes and descriptors that mean something to it
/// alone.
#[derive(Debug, Default)]
pub struct Legacy {
    /// Any bytes, such as its inodes with the references that the kernel holds.
    pub state: Vec<u8>,
    /// Open files, at most [`Self::DESCRIPTORS_MAX`]; a memfd, say, or directories.
    pub descriptors: Vec<OwnedFd>,
}

impl Legacy {
    /// One message carries 253, of which the device is one.
    pub const DESCRIPTORS_MAX: usize = 252;
}

/// A session as its successor needs it.
#[derive(Debug)]
pub(super) struct Estate {
    pub(super) terms: Terms,
    /// Device number of the mount.
    pub(super) device: (u32, u32),
    pub(super) mountpoint: PathBuf,
}

wire_struct! {
    /// In front of what is handed over.
    Head[72] {
        0 => magic: u64,
        8 => version: u32,
        12 => minor: u32,
        16 => flags: InitFlags,
        24 => offered: InitFlags,
        32 => max_write: u32,
        36 => max_readahead: u32,
        40 => max_pages: u16,
        42 => max_background: u16,
        44 => device_major: u32,
        48 => device_minor: u32,
        52 => path_len: u32,
        56 => descriptors: u32,
        64 => state_len: u64,
    }
}

impl Head {
    fn new(estate: &Estate, path: &Path, legacy: &Legacy) -> io::Result<Self> {
        let Terms { minor, flags, offered, max_write, max_pages, max_readahead, max_background } =
            estate.terms;
        let short = |len: usize| u32::try_from(len).map_err(|_| too_much());
        Ok(Self {
            magic: MAGIC,
            version: VERSION,
            minor,
            flags,
            offered,
            max_write,
            max_readahead,
            max_pages,
            max_background,
            device_major: estate.device.0,
            device_minor: estate.device.1,
            path_len: short(path.as_os_str().len())?,
            descriptors: short(legacy.descriptors.len())?,
            state_len: legacy.state.len() as u64,
        })
    }

    fn terms(&self) -> Terms {
        Terms {
            minor: self.minor,
            flags: self.flags,
            offered: self.offered,
            max_write: self.max_write,
            max_pages: self.max_pages,
            max_readahead: self.max_readahead,
            max_background: self.max_background,
        }
    }

    /// Reads one.
    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let head = Self::get(bytes).filter(|head| head.magic == MAGIC).ok_or_else(unexpected)?;
        if head.version != VERSION {
            let said = format!("the predecessor speaks version {} and not 1", head.version);
            return Err(io::Error::new(io::ErrorKind::Unsupported, said));
        }
        let sane = head.path_len <= PATH_MAX && head.max_write <= WRITE_MAX;
        if sane { Ok(head) } else { Err(unexpected()) }
    }
}

/// Sends everything, and waits for the successor to have it.
///
/// # Errors
/// When it is gone, does not answer within the socket's timeout, or there is too much.
pub(super) fn send(
    socket: &UnixStream,
    device: BorrowedFd<'_>,
    estate: &Estate,
    legacy: &Legacy,
) -> io::Result<()> {
    if legacy.descriptors.len() > Legacy::DESCRIPTORS_MAX {
        return Err(too_much());
    }
    let head = Head::new(estate, &estate.mountpoint, legacy)?.encode();
    let mut descriptors = vec![device];
    descriptors.extend(legacy.descriptors.iter().map(|descriptor| descriptor.as_fd()));
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(too_much());
    }
    let parts = [IoSlice::new(&head)];
    let sent = rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut writer = socket;
    writer.write_all(&head[sent..])?;
    writer.write_all(estate.mountpoint.as_os_str().as_bytes())?;
    writer.write_all(&legacy.state)?;
    expect(socket, READY)
}

/// Lets go: from here on the session is the successor's.
///
/// # Errors
/// When the successor is gone.
pub(super) fn let_go(mut socket: &UnixStream) -> io::Result<()> {
    socket.write_all(&[GO])
}

/// Receives everything: the device, the session, and what the file system has left.
///
/// # Errors
/// When the predecessor is gone, or sends something else.
pub(super) fn receive(mut socket: &UnixStream) -> io::Result<(OwnedFd, Estate, Legacy)> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; Head::LEN];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags)
    })?;
    let received = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors = received.flatten();
    let device = descriptors.next().ok_or_else(unexpected)?;
    let descriptors: Vec<OwnedFd> = descriptors.collect();
    socket.read_exact(&mut bytes[got.bytes..])?;
    let head = Head::decode(&bytes)?;
    if usize::try_from(head.descriptors) != Ok(descriptors.len()) {
        return Err(unexpected());
    }
    let path = exactly(socket, head.path_len.into())?;
    let state = exactly(socket, head.state_len)?;
    let estate = Estate {
        terms: head.terms(),
        device: (head.device_major, head.device_minor),
        mountpoint: OsString::from_vec(path).into(),
    };
    Ok((device, estate, Legacy { state, descriptors }))
}

/// Says that everything is there, and waits until the predecessor has let go.
///
/// # Errors
/// When it is gone, or goes on by itself: then the session is not ours.
pub(super) fn accept(mut socket: &UnixStream) -> io::Result<()> {
    socket.write_all(&[READY])?;
    expect(socket, GO)
}

/// So many bytes; memory is taken as they come.
fn exactly(socket: &UnixStream, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let got = socket.take(len).read_to_end(&mut bytes)?;
    if got as u64 == len { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn expect(mut socket: &UnixStream, expected: u8) -> io::Result<()> {
    let mut byte = [0];
    socket.read_exact(&mut byte)?;
    if byte == [expected] { Ok(()) } else { Err(unexpected()) }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is no session that is handed over")
}

fn too_much() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "more than can be handed over")
}

/// `FUSEHAND`.
const MAGIC: u64 = u64::from_ne_bytes(*b"FUSEHAND");
const VERSION: u32 = 1;
const READY: u8 = b'R';
const GO: u8 = b'G';
/// The kernel's own limit, and more than it ever agrees on.
const PATH_MAX: u32 = 4096;
const WRITE_MAX: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use std::{fs::File, thread};

    use super::*;

    fn estate() -> Estate {
        let terms = Terms {
            minor: 45,
            flags: InitFlags::ASYNC_READ | InitFlags::HAS_RESEND,
            offered: InitFlags(u64::MAX),
            max_write: 1 << 20,
            max_pages: 256,
            max_readahead: 131_072,
            max_background: 12,
        };
        Estate { terms, device: (0, 77), mountpoint: "/mnt/here".into() }
    }

    #[test]
    fn what_is_sent_arrives_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let successor = thread::spawn(move || {
            let got = receive(&theirs).unwrap();
            accept(&theirs).unwrap();
            got
        });
        let device = File::open("/dev/null").unwrap();
        let descriptors: Vec<OwnedFd> =
            (0..3).map(|_| device.try_clone().unwrap().into()).collect();
        let legacy = Legacy { state: vec![7; 1 << 20], descriptors };
        send(&ours, device.as_fd(), &estate(), &legacy).unwrap();
        assert!(!successor.is_finished(), "it waits until we let go");
        let_go(&ours).unwrap();
        let (_, got, left) = successor.join().unwrap();
        assert_eq!((got.terms, got.device), (estate().terms, (0, 77)));
        assert_eq!(got.mountpoint, estate().mountpoint);
        assert_eq!((left.state, left.descriptors.len()), (vec![7; 1 << 20], 3));
    }

    #[test]
    fn a_successor_that_dies_and_a_predecessor_that_goes_on_are_errors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let device = File::open("/dev/null").unwrap();
        assert!(send(&ours, device.as_fd(), &estate(), &Legacy::default()).is_err());
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(accept(&theirs).is_err());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_bytes_of_version_1_are_these() {
        let legacy = Legacy { state: vec![1, 2], descriptors: Vec::new() };
        let estate = estate();
        let bytes = Head::new(&estate, &estate.mountpoint, &legacy).unwrap().encode();
        let mut expected = b"FUSEHAND".to_vec();
        for number in [1_u32, 45, 1, 1 << 7, u32::MAX, u32::MAX, 1 << 20, 131_072] {
            expected.extend(number.to_le_bytes());
        }
        expected.extend([0, 1, 12, 0]);
        for number in [0_u32, 77, 9, 0, 0, 2, 0] {
            expected.extend(number.to_le_bytes());
        }
        assert_eq!(bytes[..], expected[..]);
        let newer = [&bytes[..8], &2_u32.to_le_bytes(), &bytes[12..]].concat();
        assert_eq!(Head::decode(&newer).unwrap_err().kind(), io::ErrorKind::Unsupported);
        let foreign = [b"SOMETHIN", &bytes[8..]].concat();
        assert_eq!(Head::decode(&foreign).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
