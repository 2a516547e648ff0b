//! File bytes that the daemon holds for a moment: fetched ahead, or written and not yet stored.
//!
//! Owns the one memory budget for both ([`budget`]), the pieces of files that were fetched and not
//! yet handed to the kernel ([`pieces`]), and the bytes that programs wrote and targets have not
//! acknowledged ([`write_buffer`]). Nothing here talks to a server. The kernel's page cache is the
//! real cache: a piece that the kernel has taken is dropped.
//!
//! Names and attributes are kept longer, under leases ([`names`]); the kernel may answer from them
//! for a moment ([`granted`]). What was read is noted until the
//! metadata server knows it ([`access_times`]).

pub(crate) mod access_times;
pub(crate) mod budget;
pub(crate) mod contents;
pub(crate) mod granted;
pub(crate) mod inline_bytes;
pub(crate) mod names;
pub(crate) mod pieces;
pub(crate) mod write_buffer;
