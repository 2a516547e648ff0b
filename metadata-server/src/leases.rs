//! Leases: what clients may keep of names and attributes, and how it is taken back.
//!
//! Owns who holds a lease on which key and what is on its way to be taken back. All of it is
//! volatile and pure: the engine feeds it grants, changes, acknowledgements and the time. What a
//! lease covers is said in [`millrace_protocol::lease`].
//!
//! - A change of one session is logged only when all others that may keep something of what it
//!   changes have given that back ([`Table::recall`], [`Wait`]). From the moment in which it begins
//!   to wait, nothing is granted on the keys that it touches, until it is done or given up.
//! - What a file's writers change all the time is kept by nobody: opening for writing takes it back
//!   once.
//! - A session that does not listen, or is too far behind, is granted nothing. It gives everything
//!   back by ending. One that lives and lets others wait for too long gets no ticket any more, so
//!   that it ends ([`Table::poll_overdue`]).
//! - Who makes a name where one other session has a lease waits for nothing before: that one is
//!   told ([`Table::take_told`]), and the answer waits until it has heard.
//! - One session may make files of a directory by itself ([`Table::delegate`]) while nobody else
//!   has a lease there. Whoever wants one, or changes something there, ends that.
//! - Where there is no room for one more lease, a few of the oldest are taken back; what is removed
//!   takes none ([`Table::handle_gone`]).
//! - After a restart any session that ever listened may keep anything, until it has said that it
//!   does not ([`Table::handle_declared`]) or has ended.
//!
//! Modules, in reading order: [`mod@touched`] (what a command changes), [`table`] (who holds what),
//! [`delegations`] (who makes files where), [`queue`] (what is on its way to one session),
//! [`restless`] (directories that change all the time), [`marks`] (keys on which nothing is
//! granted), [`unheard`] (names that are made, and not heard of).

pub mod delegations;
pub mod marks;
pub mod queue;
pub mod restless;
pub mod table;
pub mod touched;
pub mod unheard;

pub use marks::Wait;
pub use table::{Counts, Holding, Owed, Table, Waits};
pub use touched::{Touch, key_of, touched};
