//! Versions of the protocol.
