//! What goes wrong, and for which requests.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    gate::Gate,
    request::{Asked, Request},
};

/// One thing that goes wrong with one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Nothing: the request passes. Before another rule, for the first few of many.
    Pass,
    /// 500, with an error document; the server never sees the request.
    InternalError,
    /// 503 SlowDown.
    SlowDown,
    /// 403 AccessDenied.
    Denied,
    /// 404 NoSuchKey, though the object is there.
    Vanished,
    /// The connection is reset instead of an answer; the server never sees the request.
    Reset,
    /// The server does what was asked; then the connection is reset instead of its answer.
    LostAnswer,
    /// The server does what was asked; then the answer is 500.
    FailedAnswer,
    /// Headers come, and so many bytes of the body; then the connection is reset.
    ResetAfter(u64),
    /// So many bytes of the body come; then the connection is closed in an orderly way.
    CutAfter(u64),
    /// No answer at all, until the weather is fair again or the client has gone. The server never
    /// sees the request.
    Silence,
    /// The same, cut after this time: as by a network that forgets connections.
    SilenceFor(Duration),
    /// The body comes in pieces of so many bytes, with this pause before each.
    Trickle(usize, Duration),
    /// One bit of the byte at this place of the body is another one.
    FlippedBit(u64),
    /// The same, of an answer that is a whole object: only of those there are checksums.
    FlippedBitOfWhole(u64),
    /// `Content-Length` promises so many bytes too many; the body ends as it should.
    LengthTooLong(u64),
    /// `Content-Length`, and with it the body, has so many bytes too few.
    LengthTooShort(u64),
    /// `Content-Range` names another size of the whole object.
    OtherSize,
    /// An entity tag that no object has, with the right bytes.
    OtherTag,
    /// Something else happens before the request is handed on, such as another object under the
    /// same key.
    Meanwhile(Hook),
    /// It waits as long as the gate is closed, and passes.
    Gate(Gate),
    /// A listing that is not what the bucket has.
    List(ListFault),
}

/// How a listing is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListFault {
    /// The first answer that this listing ever had: it lacks new keys and has deleted ones.
    Stale,
    /// No key at all.
    Empty,
    /// Pages of so many keys, each twice, with the last key of the page before, in reverse order.
    Pages(usize),
    /// Pages of so many keys; each says that more comes and names itself as the next.
    Circle(usize),
    /// The first so many keys, more promised, and no way to get them.
    DeadEnd(usize),
    /// The document ends in its middle, with a length that fits.
    Torn,
}

/// Something done by a test while a request waits.
#[derive(Clone)]
pub struct Hook(Arc<dyn Fn() + Send + Sync>);

impl Hook {
    /// Wraps a function, which may take its time.
    pub fn new(work: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(work))
    }

    pub(super) fn call(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl Fault {
    /// A short name, without figures.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::InternalError => "500",
            Self::SlowDown => "503",
            Self::Denied => "403",
            Self::Vanished => "404",
            Self::Reset => "reset",
            Self::LostAnswer => "lost answer",
            Self::FailedAnswer => "failed answer",
            Self::ResetAfter(_) => "reset in body",
            Self::CutAfter(_) => "cut in body",
            Self::Silence | Self::SilenceFor(_) => "silence",
            Self::Trickle(..) => "trickle",
            Self::FlippedBit(_) | Self::FlippedBitOfWhole(_) => "flipped bit",
            Self::LengthTooLong(_) => "length too long",
            Self::LengthTooShort(_) => "length too short",
            Self::OtherSize => "other size",
            Self::OtherTag => "other tag",
            Self::Meanwhile(_) => "meanwhile",
            Self::Gate(_) => "gate",
            Self::List(ListFault::Stale) => "stale list",
            Self::List(ListFault::Empty) => "empty list",
            Self::List(ListFault::Pages(_)) => "odd pages",
            Self::List(ListFault::Circle(_)) => "circle of pages",
            Self::List(ListFault::DeadEnd(_)) => "dead end",
            Self::List(ListFault::Torn) => "torn list",
        }
    }
}

/// Which requests have which fault, and how many.
#[derive(Debug, Clone)]
pub struct Rule {
    asked: Asked,
    key: Option<String>,
    fault: Fault,
    times: u64,
}

impl Rule {
    /// Every request of a kind.
    #[must_use]
    pub fn always(asked: Asked, fault: Fault) -> Self {
        Self { asked, key: None, fault, times: u64::MAX }
    }

    /// The next requests of a kind, so many.
    #[must_use]
    pub fn next(times: u64, asked: Asked, fault: Fault) -> Self {
        Self { asked, key: None, fault, times }
    }

    /// Only for this key; of a listing, the prefix as it is sent (`set%2F`).
    #[must_use]
    pub fn of(self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self }
    }

    pub(super) fn is_for(&self, request: &Request) -> bool {
        self.times > 0
            && self.asked == request.asked
            && self.key.as_deref().is_none_or(|key| key == request.key())
    }

    pub(super) fn take(&mut self) -> Fault {
        self.times -= 1;
        self.fault.clone()
    }
}
