//! What the programs share that measure Millrace; see `docs/performance.md` for the method and the
//! figures.

pub mod aligned;
pub mod bucket;
pub mod figures;
pub mod goal_bars;
pub mod quiet;
pub mod target;
