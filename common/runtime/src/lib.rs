//! What a simulation replaces: time, chance and tasks.
//!
//! Owns the only places where the workspace reads a clock, draws a random number or starts a task,
//! so that a test can drive all three. It knows nothing of files, disks or networks.
//!
//! Modules, in reading order: [`clock`], [`random`], [`spawn`], [`shutdown`].

pub mod clock;
pub mod random;
pub mod shutdown;
pub mod spawn;

pub use clock::{Clock, VirtualTime};
pub use random::Random;
pub use shutdown::{Drained, Shutdown};
pub use spawn::Tasks;
