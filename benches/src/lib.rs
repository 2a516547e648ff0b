//! Programs that measure Millrace; see `docs/performance.md` for the method and the figures.
