//! A whole request: header, operation, extensions.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use crate::{
    protocol::{
        attr::{Access, Forgets, GetAttr, SetAttr},
        data::{BMap, CopyFileRange, FAllocate, LSeek, Read, Write},
        extension::Extensions,
        header::{Opcode, RequestHeader},
        init::Init,
        ioctl::{IoCtl, Poll},
        lock::Lock,
        node::{Link, MkDir, MkNod, Rename, RenameFlags},
        notification::Retrieved,
        open::{Create, FSync, Flush, Open, Release},
        statx::StatX,
        xattr::{GetXAttr, SetXAttr},
    },
    wire::Wire,
};

/// A request, borrowed from the bytes that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'bytes> {
    /// Who asks, about what.
    pub header: RequestHeader,
    /// What is asked.
    pub operation: Operation<'bytes>,
    /// Of requests that make an inode: what it is to have besides.
    pub extensions: Extensions<'bytes>,
}

/// What is asked for. Names are never empty and have no NUL; those of entries have no `/` either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are the structures of their modules, names, and data")]
pub enum Operation<'bytes> {
    /// May be `.` or `..` with `EXPORT_SUPPORT`.
    Lookup { name: &'bytes OsStr },
    /// Not answered.
    Forget { lookups: u64 },
    /// Not answered.
    BatchForget(Forgets<'bytes>),
    /// See [`GetAttr`].
    GetAttr(GetAttr),
    /// See [`SetAttr`].
    SetAttr(SetAttr),
    /// See [`StatX`].
    StatX(StatX),
    /// Answered with the target.
    ReadLink,
    /// The target has no NUL.
    SymLink { name: &'bytes OsStr, target: &'bytes OsStr },
    /// See [`MkNod`].
    MkNod { mknod: MkNod, name: &'bytes OsStr },
    /// See [`MkDir`].
    MkDir { mkdir: MkDir, name: &'bytes OsStr },
    /// Not a directory.
    Unlink { name: &'bytes OsStr },
    /// An empty directory.
    RmDir { name: &'bytes OsStr },
    /// RENAME or RENAME2.
    Rename { rename: Rename, name: &'bytes OsStr, new_name: &'bytes OsStr },
    /// See [`Link`].
    Link { link: Link, name: &'bytes OsStr },
    /// See [`Open`].
    Open(Open),
    /// See [`Read`].
    Read(Read),
    /// See [`Write`].
    Write { write: Write, data: &'bytes [u8] },
    /// See [`StatFsReply`](crate::protocol::statfs::StatFsReply).
    StatFs,
    /// See [`Release`].
    Release(Release),
    /// See [`FSync`].
    FSync(FSync),
    /// See [`SetXAttr`].
    SetXAttr { set: SetXAttr, name: &'bytes OsStr, value: &'bytes [u8] },
    /// See [`GetXAttr`].
    GetXAttr { get: GetXAttr, name: &'bytes OsStr },
    /// See [`GetXAttr`].
    ListXAttr(GetXAttr),
    /// By name.
    RemoveXAttr { name: &'bytes OsStr },
    /// See [`Flush`].
    Flush(Flush),
    /// See [`Init`].
    Init(Init),
    /// See [`Open`].
    OpenDir(Open),
    /// See [`Read`].
    ReadDir(Read),
    /// See [`Read`].
    ReadDirPlus(Read),
    /// See [`Release`].
    ReleaseDir(Release),
    /// See [`FSync`].
    FSyncDir(FSync),
    /// See [`Lock`].
    GetLk(Lock),
    /// See [`Lock`].
    SetLk(Lock),
    /// See [`Lock`].
    SetLkW(Lock),
    /// See [`Access`].
    Access(Access),
    /// See [`Create`].
    Create { create: Create, name: &'bytes OsStr },
    /// The node is the directory; the name that the kernel sends means nothing.
    TmpFile(Create),
    /// The unique of the request that nobody waits for any more. Needs no answer.
    Interrupt { unique: u64 },
    /// See [`BMap`].
    BMap(BMap),
    /// The session ends.
    Destroy,
    /// See [`IoCtl`].
    IoCtl { ioctl: IoCtl, data: &'bytes [u8] },
    /// See [`Poll`].
    Poll(Poll),
    /// The header's unique is that of the retrieval. Not answered.
    NotifyReply { retrieved: Retrieved, data: &'bytes [u8] },
    /// See [`FAllocate`].
    FAllocate(FAllocate),
    /// See [`LSeek`].
    LSeek(LSeek),
    /// See [`CopyFileRange`].
    CopyFileRange(CopyFileRange),
    /// The same, answered with 64 bits.
    CopyFileRange64(CopyFileRange),
    /// Everything becomes durable.
    SyncFs,
}

/// What was agreed on in INIT, as far as it changes how bytes are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// `SETXATTR_EXT` was taken.
    pub long_setxattr: bool,
}

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is not even a header, or its length is not that of the request. No answer can name it.
    #[error("the request has another length than its header says, or no header")]
    Header,
    /// What is asked for is not known: answered ENOSYS.
    #[error("opcode {0} is not known")]
    Unknown(u32),
    /// The body is not what the opcode says: answered EIO.
    #[error("a body of {1} bytes is none of {0:?}")]
    Body(Opcode, usize),
}

impl<'bytes> Request<'bytes> {
    /// Reads a whole request.
    ///
    /// # Errors
    /// [`DecodeError`], from which follows what is answered.
    pub fn decode(bytes: &'bytes [u8], layout: Layout) -> Result<Self, DecodeError> {
        Self::decode_parts([bytes, &[]], layout)
    }

    /// Reads a request that lies in two parts: header and the structure behind it in the first,
    /// names, data and extensions in either. None of them lies in both.
    ///
    /// # Errors
    /// [`DecodeError`], from which follows what is answered.
    pub fn decode_parts(parts: [&'bytes [u8]; 2], layout: Layout) -> Result<Self, DecodeError> {
        let [head, rest] = parts;
        let header = RequestHeader::get(head).ok_or(DecodeError::Header)?;
        let len = head.len() + rest.len();
        if usize::try_from(header.len) != Ok(len) {
            return Err(DecodeError::Header);
        }
        let opcode = Opcode::from_number(header.opcode);
        let opcode = opcode.ok_or(DecodeError::Unknown(header.opcode))?;
        let body = [&head[RequestHeader::LEN..], rest];
        let read = Self::read(header, opcode, body, layout);
        read.ok_or(DecodeError::Body(opcode, len - RequestHeader::LEN))
    }

    fn read(
        header: RequestHeader,
        opcode: Opcode,
        parts: [&'bytes [u8]; 2],
        layout: Layout,
    ) -> Option<Self> {
        let extensions_len = usize::from(header.extension_units) * EXTENSION_UNIT;
        // Whichever part is the last.
        let [first, second] = parts;
        let last = if second.is_empty() { first } else { second };
        let (body, extensions) = last.split_at(last.len().checked_sub(extensions_len)?);
        let mut body = if second.is_empty() { Body([body, &[]]) } else { Body([first, body]) };
        let operation = Operation::read(opcode, &mut body, layout)?;
        body.is_empty().then_some(())?;
        let extensions = Extensions::decode(extensions)?;
        Some(Self { header, operation, extensions })
    }
}

impl<'bytes> Operation<'bytes> {
    fn read(opcode: Opcode, body: &mut Body<'bytes>, layout: Layout) -> Option<Self> {
        Some(match opcode {
            Opcode::Lookup => Self::Lookup { name: body.any_name()? },
            Opcode::Forget => Self::Forget { lookups: body.fixed()? },
            Opcode::BatchForget => Self::BatchForget(Forgets::decode(body.rest())?),
            Opcode::GetAttr => Self::GetAttr(body.fixed()?),
            Opcode::SetAttr => Self::SetAttr(body.fixed()?),
            Opcode::StatX => Self::StatX(body.fixed()?),
            Opcode::Access => Self::Access(body.fixed()?),
            Opcode::StatFs => Self::StatFs,
            Opcode::Init => Self::Init(Init::decode(body.rest())?),
            Opcode::Interrupt => Self::Interrupt { unique: body.fixed()? },
            Opcode::Destroy => Self::Destroy,
            Opcode::NotifyReply => {
                let retrieved: Retrieved = body.fixed()?;
                Self::NotifyReply { retrieved, data: body.data(retrieved.size)? }
            }
            Opcode::SyncFs => {
                let _padding: u64 = body.fixed()?;
                Self::SyncFs
            }
            Opcode::SetXAttr | Opcode::GetXAttr | Opcode::ListXAttr | Opcode::RemoveXAttr => {
                Self::read_xattr(opcode, body, layout)?
            }
            _ => match Self::read_names(opcode, body) {
                Some(operation) => operation,
                None => Self::read_handle(opcode, body)?,
            },
        })
    }

    /// Operations that make, remove and move names.
    fn read_names(opcode: Opcode, body: &mut Body<'bytes>) -> Option<Self> {
        Some(match opcode {
            Opcode::ReadLink => Self::ReadLink,
            Opcode::SymLink => {
                let name = body.name()?;
                Self::SymLink { name, target: body.string()? }
            }
            Opcode::MkNod => Self::MkNod { mknod: body.fixed()?, name: body.name()? },
            Opcode::MkDir => Self::MkDir { mkdir: body.fixed()?, name: body.name()? },
            Opcode::Unlink => Self::Unlink { name: body.name()? },
            Opcode::RmDir => Self::RmDir { name: body.name()? },
            Opcode::Rename => {
                let new_directory = body.fixed()?;
                let rename = Rename { new_directory, flags: RenameFlags::EMPTY };
                Self::Rename { rename, name: body.name()?, new_name: body.name()? }
            }
            Opcode::Rename2 => {
                let rename = body.fixed()?;
                Self::Rename { rename, name: body.name()?, new_name: body.name()? }
            }
            Opcode::Link => Self::Link { link: body.fixed()?, name: body.name()? },
            Opcode::Create => Self::Create { create: body.fixed()?, name: body.name()? },
            Opcode::TmpFile => {
                let create = body.fixed()?;
                body.string()?;
                Self::TmpFile(create)
            }
            _ => return None,
        })
    }

    /// Operations on open files.
    fn read_handle(opcode: Opcode, body: &mut Body<'bytes>) -> Option<Self> {
        Some(match opcode {
            Opcode::Open => Self::Open(body.fixed()?),
            Opcode::OpenDir => Self::OpenDir(body.fixed()?),
            Opcode::Read => Self::Read(body.fixed()?),
            Opcode::ReadDir => Self::ReadDir(body.fixed()?),
            Opcode::ReadDirPlus => Self::ReadDirPlus(body.fixed()?),
            Opcode::Write => {
                let write: Write = body.fixed()?;
                Self::Write { write, data: body.data(write.size)? }
            }
            Opcode::Flush => Self::Flush(body.fixed()?),
            Opcode::FSync => Self::FSync(body.fixed()?),
            Opcode::FSyncDir => Self::FSyncDir(body.fixed()?),
            Opcode::Release => Self::Release(body.fixed()?),
            Opcode::ReleaseDir => Self::ReleaseDir(body.fixed()?),
            Opcode::GetLk => Self::GetLk(body.fixed()?),
            Opcode::SetLk => Self::SetLk(body.fixed()?),
            Opcode::SetLkW => Self::SetLkW(body.fixed()?),
            Opcode::BMap => Self::BMap(body.fixed()?),
            Opcode::IoCtl => {
                let ioctl: IoCtl = body.fixed()?;
                Self::IoCtl { ioctl, data: body.data(ioctl.in_size)? }
            }
            Opcode::Poll => Self::Poll(body.fixed()?),
            Opcode::FAllocate => Self::FAllocate(body.fixed()?),
            Opcode::LSeek => Self::LSeek(body.fixed()?),
            Opcode::CopyFileRange => Self::CopyFileRange(body.fixed()?),
            Opcode::CopyFileRange64 => Self::CopyFileRange64(body.fixed()?),
            _ => return None,
        })
    }

    fn read_xattr(opcode: Opcode, body: &mut Body<'bytes>, layout: Layout) -> Option<Self> {
        Some(match opcode {
            Opcode::SetXAttr => {
                let set: SetXAttr = if layout.long_setxattr {
                    body.fixed()?
                } else {
                    let (size, flags) = (body.fixed()?, body.fixed()?);
                    SetXAttr { size, flags, ..SetXAttr::default() }
                };
                let name = body.string()?;
                Self::SetXAttr { set, name, value: body.data(set.size)? }
            }
            Opcode::GetXAttr => Self::GetXAttr { get: body.fixed()?, name: body.string()? },
            Opcode::ListXAttr => Self::ListXAttr(body.fixed()?),
            Opcode::RemoveXAttr => Self::RemoveXAttr { name: body.string()? },
            _ => return None,
        })
    }
}

/// What of a body is still to be read, in two parts of which the first may be empty.
struct Body<'bytes>([&'bytes [u8]; 2]);

impl<'bytes> Body<'bytes> {
    fn is_empty(&self) -> bool {
        self.0.iter().all(|part| part.is_empty())
    }

    /// The part that is to be read next.
    fn part(&mut self) -> &mut &'bytes [u8] {
        let [first, second] = &mut self.0;
        if first.is_empty() { second } else { first }
    }

    fn fixed<T: Wire>(&mut self) -> Option<T> {
        let part = self.part();
        let value = T::get(part)?;
        *part = &part[T::LEN..];
        Some(value)
    }

    /// What is left of the part, and of the body.
    fn rest(&mut self) -> &'bytes [u8] {
        std::mem::take(self.part())
    }

    /// As many bytes as the structure in front of them says, and nothing behind.
    fn data(&mut self, size: u32) -> Option<&'bytes [u8]> {
        (usize::try_from(size) == Ok(self.part().len())).then(|| self.rest())
    }

    /// What is in front of a NUL; not empty.
    fn string(&mut self) -> Option<&'bytes OsStr> {
        let part = self.part();
        let end = part.iter().position(|byte| *byte == 0)?;
        let (string, rest) = part.split_at(end);
        *part = &rest[1..];
        (!string.is_empty()).then(|| OsStr::from_bytes(string))
    }

    /// The name of an entry; `.` and `..` too.
    fn any_name(&mut self) -> Option<&'bytes OsStr> {
        self.string().filter(|name| !name.as_bytes().contains(&b'/'))
    }

    /// The name of an entry that can be made, removed or moved.
    fn name(&mut self) -> Option<&'bytes OsStr> {
        self.any_name().filter(|name| *name != "." && *name != "..")
    }
}

const EXTENSION_UNIT: usize = 8;
