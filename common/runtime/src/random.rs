//! Chance: from the operating system, or from a seed so that a run can be repeated.
//!
//! Good for identifiers, jitter and placement. Keys do not come from here: the cryptographic
//! library draws those itself.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_types::{ClusterId, HostId, TargetId};
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

/// A generator of random values, shared by its clones.
#[derive(Clone)]
pub struct Random(Arc<Mutex<StdRng>>);

impl Random {
    /// Seeded by the operating system.
    #[must_use]
    pub fn system() -> Self {
        Self(Arc::new(Mutex::new(StdRng::from_os_rng())))
    }

    /// Gives the same values for the same seed, as long as the calls come in the same order.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// Any number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.lock().next_u64()
    }

    /// A number of a range that is not empty.
    ///
    /// # Panics
    /// When the range is empty.
    #[must_use]
    pub fn within(&self, range: Range<u64>) -> u64 {
        self.lock().random_range(range)
    }

    /// Fills `bytes`.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.lock().fill_bytes(bytes);
    }

    /// A pause of half to all of `longest`, so that callers that failed together do not come back
    /// together.
    #[must_use]
    pub fn jitter(&self, longest: Duration) -> Duration {
        longest.mul_f64(self.lock().random_range(0.5..=1.0))
    }

    /// A new cluster's id.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId(self.bytes())
    }

    /// A new node's id.
    #[must_use]
    pub fn host_id(&self) -> HostId {
        HostId(self.bytes())
    }

    /// A new target's id.
    #[must_use]
    pub fn target_id(&self) -> TargetId {
        TargetId(self.bytes())
    }

    fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    /// A panic elsewhere leaves the generator at some state, and any state is good.
    fn lock(&self) -> MutexGuard<'_, StdRng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_values() {
        let (left, right) = (Random::seeded(7), Random::seeded(7));
        assert_eq!(left.host_id(), right.host_id());
        assert_eq!(left.number(), right.number());
        assert_ne!(left.number(), Random::seeded(8).number());
    }

    #[test]
    fn jitter_stays_between_half_and_all() {
        let random = Random::seeded(1);
        let longest = Duration::from_secs(1);
        for _ in 0..1000 {
            let pause = random.jitter(longest);
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?}");
        }
    }
}
