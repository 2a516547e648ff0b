//! What lies under a disk: how long it is, whether it can grow, and who else may use it.

use std::{fmt, io, sync::Arc};

use futures::future::BoxFuture;

use super::DiskError;

/// What lies under a disk. The disk itself only moves bytes.
///
/// # Durability
/// A length is durable after a sync of the disk that began when [`Self::grow`] had returned; before
/// it, a loss of power may undo the growth, and what was written there is lost with it.
pub trait Backing: Send + Sync + fmt::Debug {
    /// Bytes that can be read and written now.
    ///
    /// # Errors
    /// What the system says.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Bytes that it could grow by now; 0 for what never grows.
    ///
    /// # Errors
    /// What the system says.
    fn room_bytes(&self) -> io::Result<u64>;

    /// Grows from `old_len`, the length now, to `new_len`. New bytes read as zeros.
    ///
    /// # Errors
    /// [`DiskError::NoSpace`] when there is no room, now or ever; nothing is then changed.
    fn grow(
        self: Arc<Self>,
        old_len: u64,
        new_len: u64,
    ) -> BoxFuture<'static, Result<(), DiskError>>;

    /// Lets others have it. Who has opened it stops writing before.
    fn unlock(&self);

    /// Lets go of it altogether: nothing can be asked of it any more, and whoever opens it next
    /// finds it as if this process had ended.
    fn release(&self);
}
