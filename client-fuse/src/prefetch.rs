//! Decides what to fetch before anybody asks for it.
//!
//! Owns no socket, clock or buffer. [`window`] watches the reads of one file and says how far ahead
//! of each sequential stream the fetched bytes should reach; [`queue`] cuts that distance into
//! requests that the targets can answer one by one. The pieces themselves, and the memory that they
//! take, belong to [`crate::cache`].

pub(crate) mod queue;
pub(crate) mod window;
