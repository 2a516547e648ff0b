//! Rules that no compiler checks: size, width, leftovers, links, layout, licences.
//!
//! One file a rule below `tidy/`. Reads the repository's files as they lie there; needs no network.

#[path = "tidy/config.rs"]
mod config;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/layout.rs"]
mod layout;
#[path = "tidy/text.rs"]
mod text;
