//! Sessions beside the command log: when they run out, and who reads what.
//!
//! That a session exists and what it has open for writing is durable and changed by commands. What
//! lies here is not: leases, and opens for reading, which cost no command until their inode loses
//! its last name. After a restart every known session gets some leases to declare itself; what may
//! be open until then is not given up. One that says that it has declared everything, or ends, is
//! not waited for any more.
//!
//! Modules: [`expiry`] (leases), [`readers`] (opens for reading), [`late_opens`] (opens of what has
//! just lost its name), [`declarations`] (who has not said yet what it holds).

pub mod declarations;
pub mod expiry;
pub mod late_opens;
pub mod readers;

pub use declarations::Declarations;
pub use expiry::Expiry;
pub use late_opens::LateOpens;
pub use readers::Readers;
