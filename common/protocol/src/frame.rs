//! The header in front of every message.
