//! The table `[cluster]`: how a program finds its cluster and proves who it is.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::address::ServerAddress;

/// The table `[cluster]` of everything that talks to the metadata server: targets, mounts, the CLI.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ClusterSettings {
    /// The metadata servers, such as `["meta-1:7440"]`; at least one, tried in this order.
    pub servers: Vec<ServerAddress>,
    /// The identity bundle that `millrace cluster invite` made: one PEM file with certificate,
    /// private key and the cluster's authority, readable by its owner alone.
    pub identity: PathBuf,
}
