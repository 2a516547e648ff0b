//! The beginning of a session: INIT is read and answered, and with it is decided how all other
//! requests come.

use std::{fs, io::IoSlice};

use rustix::io::Errno;

use super::{
    SessionError, SessionOptions,
    negotiate::{Limits, Negotiated, Terms, negotiate},
};
use crate::{
    channel::{
        Origin, Received, Receiver as _, Responder as _,
        buffer::Pool,
        device::DeviceChannel,
        uring::{Plan, UringChannel},
    },
    protocol::{
        header::ReplyHeader,
        init::{Init, InitReply},
        operation::{Layout, Operation, Request},
    },
};

/// How requests come, other than the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    /// What is best as far as is known: the device at present.
    #[default]
    Auto,
    /// `/dev/fuse`, which every kernel has.
    Device,
    /// io_uring (Linux 6.14). Where kernel or machine do not allow it, the device, and a line in
    /// the log says why.
    Uring,
}

impl Channel {
    fn wants_ring(self) -> bool {
        match self {
            Self::Auto => RING_BY_DEFAULT,
            Self::Device => false,
            Self::Uring => true,
        }
    }
}

/// Reads INIT and answers it. Gives the ring, if that was agreed on.
pub(super) fn initialise(
    device: &DeviceChannel,
    options: &SessionOptions,
) -> Result<(Terms, Option<UringChannel>), SessionError> {
    let pool = Pool::new(INIT_BUFFER_LEN, 0);
    let mut receiver = device.receiver(0, &pool);
    loop {
        let Received::Request(incoming) = receiver.receive().map_err(SessionError::Init)? else {
            return Err(SessionError::Init(Errno::NODEV));
        };
        let (origin, request) =
            (incoming.origin, Request::decode_parts(incoming.parts(), Layout::default()));
        let Ok(Request { header, operation: Operation::Init(init), .. }) = request else {
            return Err(SessionError::Init(Errno::PROTO));
        };
        let answer = |reply| answer(device, origin, header.unique, reply);
        let (negotiated, ring) = agree(device, &init, options);
        match negotiated {
            Negotiated::Agreed(reply, terms) => {
                tracing::debug!(?terms, "the session begins");
                answer(Ok(reply))?;
                return Ok((terms, ring));
            }
            Negotiated::AskAgain(reply) => answer(Ok(reply))?,
            Negotiated::TooOld => {
                answer(Err(Errno::PROTO))?;
                return Err(SessionError::Version { major: init.major, minor: init.minor });
            }
        }
    }
}

fn answer(
    device: &DeviceChannel,
    origin: Origin,
    unique: u64,
    reply: Result<InitReply, Errno>,
) -> Result<(), SessionError> {
    let (error, body) = match reply {
        Ok(reply) => (0, reply.encode().to_vec()),
        Err(errno) => (-errno.raw_os_error(), Vec::new()),
    };
    let len = u32::try_from(ReplyHeader::LEN + body.len()).expect("short");
    let header = ReplyHeader { len, error, unique }.encode();
    let parts = [IoSlice::new(&header), IoSlice::new(&body)];
    device.responder().respond(origin, &parts).map_err(SessionError::Init)
}

/// Decides what is answered. A ring that was agreed on is there already, because the kernel waits
/// for it from then on.
fn agree(
    device: &DeviceChannel,
    init: &Init,
    options: &SessionOptions,
) -> (Negotiated, Option<UringChannel>) {
    let limits = limits();
    let without = |reason: Option<String>| {
        if let Some(reason) = reason {
            tracing::warn!("requests come through /dev/fuse and not over io_uring: {reason}");
        }
        (negotiate(init, &options.wishes, limits), None)
    };
    if !options.channel.wants_ring() {
        return without(None);
    }
    let negotiated = negotiate(init, &options.wishes, Limits { ring: true, ..limits });
    let Negotiated::Agreed(_, terms) = negotiated else { return without(None) };
    if terms.channel() != Channel::Uring {
        let parameter = fs::read_to_string(PARAMETER).ok();
        return without(Some(not_offered(parameter.as_deref())));
    }
    match ring(device, &terms, options.ring_memory) {
        Ok(ring) => (negotiated, Some(ring)),
        Err(error) => without(Some(format!(
            "a ring cannot be made: {error} (see the settings kernel.io_uring_disabled and \
             vm.overcommit_memory, and what a container forbids)"
        ))),
    }
}

fn ring(
    device: &DeviceChannel,
    terms: &Terms,
    memory: Option<usize>,
) -> Result<UringChannel, Errno> {
    let queues = Plan::possible_cpus().ok_or(Errno::NOSYS)?;
    let max_write = usize::try_from(terms.max_write).map_err(|_| Errno::NOMEM)?;
    let page = rustix::param::page_size();
    let plan = Plan::new(queues, memory, max_write, terms.max_pages.into(), page);
    tracing::debug!(?plan, "a ring");
    if plan.entries < FEW_ENTRIES {
        tracing::warn!(
            ?plan,
            ?memory,
            "a ring has so few entries that programs may wait for one another; give it more memory"
        );
    }
    UringChannel::new(device, &plan)
}

/// Why the kernel does not offer FUSE over io_uring, given what its parameter says.
fn not_offered(parameter: Option<&str>) -> String {
    match parameter.map(str::trim) {
        None => "this kernel does not have it; Linux 6.14 and later do".into(),
        Some("Y" | "1") => "this kernel does not offer it to this mount".into(),
        Some(_) => format!("it is switched off; `echo 1 > {PARAMETER}` switches it on"),
    }
}

/// What this machine allows, without a ring.
pub(super) fn limits() -> Limits {
    // Kernels before 6.13 have no such setting.
    let setting = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok();
    let max_pages = setting.and_then(|text| text.trim().parse::<u32>().ok());
    let max_pages = max_pages.unwrap_or(PAGES_BUILT_IN);
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    Limits { max_pages: u16::try_from(max_pages).unwrap_or(u16::MAX), page, ring: false }
}

/// What [`Channel::Auto`] is where both are possible.
const RING_BY_DEFAULT: bool = false;
/// The kernel's switch. What is mounted keeps what it has.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// With fewer entries for each CPU, a few programs that wait for locks stop the others.
const FEW_ENTRIES: u16 = 4;
/// What the kernel wants to read into at least, before it knows `max_write`.
const INIT_BUFFER_LEN: usize = 256 * 1024;
/// `max_pages` at most where the kernel has no setting for it.
const PAGES_BUILT_IN: u32 = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{channel::device, protocol::init::InitFlags};

    #[test]
    fn the_default_is_one_of_the_two() {
        assert_eq!(Channel::default().wants_ring(), RING_BY_DEFAULT);
        assert!(Channel::Uring.wants_ring() && !Channel::Device.wants_ring());
    }

    #[test]
    fn without_an_offer_the_device_is_used() {
        let Ok(device) = device::open() else { return };
        let device = DeviceChannel::new(device.into(), 1, Duration::ZERO);
        let options = SessionOptions { channel: Channel::Uring, ..SessionOptions::default() };
        let offer = |flags: InitFlags| {
            let reply = InitReply::default().with_flags(flags.with(InitFlags::INIT_EXT));
            let (flags, flags2) = (reply.flags, reply.flags2);
            Init { major: 7, minor: 42, max_readahead: 0, flags, flags2 }
        };
        let (negotiated, ring) = agree(&device, &offer(InitFlags::MAX_PAGES), &options);
        let Negotiated::Agreed(_, terms) = negotiated else { panic!("{negotiated:?}") };
        assert_eq!((terms.channel(), ring.is_none()), (Channel::Device, true));
        let all = offer(InitFlags::OVER_IO_URING.with(InitFlags::MAX_PAGES));
        let (negotiated, ring) = agree(&device, &all, &options);
        let Negotiated::Agreed(reply, terms) = negotiated else { panic!("{negotiated:?}") };
        // Where rings may not be made the answer is that of the device too.
        assert_eq!(terms.channel() == Channel::Uring, ring.is_some());
        assert_eq!(reply.flags2 & 1 << 9 != 0, ring.is_some());
    }

    #[test]
    fn why_there_is_no_ring_is_said_and_how_to_get_one() {
        assert!(not_offered(None).contains("6.14"));
        assert!(not_offered(Some("N\n")).contains("echo 1 > /sys/module/fuse/parameters"));
        assert!(!not_offered(Some("Y\n")).contains("echo"));
    }
}
