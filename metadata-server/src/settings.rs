//! Every knob of the metadata server, with its unit, default and cost.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use millrace_service::{
    address::METADATA_PORT, daemon::DaemonSettings, duration, metrics::MetricsSettings,
    processors::ProcessorSettings, telemetry::LogSettings,
};
use millrace_transport::TransportSettings;
use millrace_types::{ByteLen, ClusterId, MIB};
use serde::{Deserialize, Deserializer, Serialize};

use crate::engine::{EngineSettings, StoreKind};

/// Settings of one metadata server.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where targets, clients and operators reach this server. Default: port 7440 of all addresses.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// The identity bundle: one PEM file with certificate, key and the cluster's authority.
    pub identity: PathBuf,
    /// The directory of the command log and the store. The log is the file system: keep it on a
    /// disk that is not lost easily.
    pub data: PathBuf,
    /// The table `[store]`.
    #[serde(default)]
    pub store: StoreSettings,
    /// The table `[command_log]`.
    #[serde(default)]
    pub command_log: CommandLogSettings,
    /// The table `[sessions]`.
    #[serde(default)]
    pub sessions: SessionSettings,
    /// The table `[fsck]`.
    #[serde(default)]
    pub fsck: FsckSettings,
    /// The table `[buckets]`.
    #[serde(default)]
    pub buckets: BucketSettings,
    /// The table `[network]`. Defaults, also of what a table leaves out, are those of a server of
    /// small messages.
    #[serde(default = "TransportSettings::metadata", deserialize_with = "network")]
    pub network: TransportSettings,
    /// The table `[log]`: what is written for people.
    #[serde(default)]
    pub log: LogSettings,
    /// The table `[metrics]`.
    #[serde(default)]
    pub metrics: MetricsSettings,
    /// The table `[processors]`.
    #[serde(default)]
    pub processors: ProcessorSettings,
    /// How long a stop waits for requests under way. Default 10 s.
    #[serde(default = "default_drain", with = "duration")]
    pub drain: Duration,
}

/// The table `[store]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSettings {
    /// `lsm`, `sled`, or `memory`: rebuilt from the log at every start. A start with another one
    /// than the last makes the store anew. Default `lsm`.
    pub engine: StoreKind,
    /// Memory for pages of the store. Default 128 MiB; reads of what does not fit cost a disk read.
    /// What is not written out yet takes three eighths more, and as much again during merges;
    /// `sled` takes several times as much.
    pub cache: ByteLen,
    /// New files of 4 to 16 KiB live in their inodes, where their directory says so, while all
    /// metadata takes less than this, and the disk has room. Default 4 GiB, a minute's work for a
    /// snapshot; 0: never.
    pub small_files: ByteLen,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            engine: StoreKind::default(),
            cache: ByteLen(128 * MIB),
            small_files: ByteLen(4096 * MIB),
        }
    }
}

/// The table `[command_log]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct CommandLogSettings {
    /// A segment is ended past this size, 1 MiB to 1 GiB; one segment is checked at every start.
    /// Default 32 MiB.
    pub segment: ByteLen,
    /// Changes are on stable storage after so long at the latest, at most 1 s. Default 500 ms.
    #[serde(with = "duration")]
    pub sync_interval: Duration,
    /// A snapshot of the store is taken when the log has grown by this much since the last one (and
    /// by a quarter of what that one is), at least 1 MiB; the log before the last but one is
    /// removed. Less makes a start faster that must make the store anew, and writes more. Default
    /// 256 MiB: a million changes or two, which such a start replays behind the snapshot.
    pub snapshot: ByteLen,
}

impl Default for CommandLogSettings {
    fn default() -> Self {
        Self {
            segment: ByteLen(32 * MIB),
            sync_interval: Duration::from_millis(500),
            snapshot: ByteLen(256 * MIB),
        }
    }
}

/// The table `[sessions]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct SessionSettings {
    /// A client that is silent for so long is cut off, 5 s to 10 min. Shorter frees a dead client's
    /// files sooner and cuts a slow network off sooner. Default 30 s.
    #[serde(with = "duration")]
    pub lease: Duration,
    /// By how much the clocks of nodes may drift apart within a lease. Default 2 s.
    #[serde(with = "duration")]
    pub clock_error: Duration,
    /// The key that signs capabilities is replaced after so long, at least 1 h. Default 30 days.
    #[serde(with = "duration")]
    pub key_lifetime: Duration,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            clock_error: Duration::from_secs(2),
            key_lifetime: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// The table `[fsck]`: comparing the namespace with itself, and what targets hold with it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct FsckSettings {
    /// A check starts so long after the end of the last one of all targets; `0s`: only on command.
    /// Default 24 h.
    #[serde(with = "duration")]
    pub interval: Duration,
    /// The first starts so long after the server. Default 15 min: targets are back by then.
    #[serde(with = "duration")]
    pub first_after: Duration,
    /// Inodes and contents compared in a second, from 1 on; of the namespace by itself an eighth.
    /// Default 20,000: costs a few percent of the server's thread.
    pub contents_per_second: u64,
}

impl Default for FsckSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(24 * 3600),
            first_after: Duration::from_secs(15 * 60),
            contents_per_second: 20_000,
        }
    }
}

/// The table `[buckets]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct BucketSettings {
    /// The file with named credentials, read again when it changes. Default: none, so that only the
    /// environment's are known.
    pub credentials_file: Option<PathBuf>,
    /// How long a bucket may stay silent in the middle of an answer, or send less than 1 KiB/s.
    /// What is sent to it has a second more for each 128 KiB. Default 60 s.
    #[serde(with = "duration")]
    pub read_timeout: Duration,
}

impl Default for BucketSettings {
    fn default() -> Self {
        let defaults = millrace_object_source::Settings::default();
        Self { credentials_file: None, read_timeout: defaults.read_timeout }
    }
}

impl DaemonSettings for Settings {
    fn log(&self) -> &LogSettings {
        &self.log
    }

    fn processors(&self) -> &ProcessorSettings {
        &self.processors
    }

    /// Checks ranges.
    fn check(&self) -> Result<(), String> {
        let segment = self.command_log.segment.0;
        if !(MIB..=1024 * MIB).contains(&segment) {
            return Err("command_log.segment must be 1 MiB to 1 GiB".to_owned());
        }
        let interval = self.command_log.sync_interval;
        if interval.is_zero() || interval > Duration::from_secs(1) {
            return Err("command_log.sync_interval must be above 0 and at most 1s".to_owned());
        }
        if self.command_log.snapshot.0 < MIB {
            return Err("command_log.snapshot must be at least 1 MiB".to_owned());
        }
        if !(5..=600).contains(&self.sessions.lease.as_secs()) {
            return Err("sessions.lease must be 5s to 10min".to_owned());
        }
        if self.sessions.clock_error >= self.sessions.lease {
            return Err("sessions.clock_error must be below sessions.lease".to_owned());
        }
        if self.sessions.key_lifetime < Duration::from_secs(3600) {
            return Err("sessions.key_lifetime must be at least 1h".to_owned());
        }
        if self.fsck.contents_per_second == 0 {
            return Err("fsck.contents_per_second must be at least 1".to_owned());
        }
        if self.store.cache.0 < 8 * MIB {
            return Err("store.cache must be at least 8 MiB".to_owned());
        }
        self.network.check().map_err(|error| format!("[network]: {error}"))
    }
}

impl Settings {
    /// What the engine is told.
    #[must_use]
    pub fn engine(&self, cluster: ClusterId) -> EngineSettings {
        EngineSettings {
            store: self.store.engine,
            cache_bytes: self.store.cache.0,
            small_files_bytes: self.store.small_files.0,
            segment_bytes: self.command_log.segment.0,
            sync_interval: self.command_log.sync_interval,
            snapshot_bytes: self.command_log.snapshot.0,
            lease: self.sessions.lease,
            clock_error: self.sessions.clock_error,
            key_lifetime: self.sessions.key_lifetime,
            ..EngineSettings::new(self.data.clone(), cluster)
        }
    }

    /// What bucket access is told.
    #[must_use]
    pub fn bucket_access(&self) -> millrace_object_source::Settings {
        millrace_object_source::Settings {
            credentials_file: self.buckets.credentials_file.clone(),
            read_timeout: self.buckets.read_timeout,
            ..millrace_object_source::Settings::default()
        }
    }
}

/// What the table leaves out is as for a server of small messages; the type's own defaults are not.
fn network<'de, D: Deserializer<'de>>(named: D) -> Result<TransportSettings, D::Error> {
    TransportSettings::over(&TransportSettings::metadata(), named)
}

fn default_listen() -> SocketAddr {
    (std::net::Ipv6Addr::UNSPECIFIED, METADATA_PORT).into()
}

fn default_drain() -> Duration {
    Duration::from_secs(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "identity = \"/i.pem\"\ndata = \"/d\"\n";

    fn parse(network: &str) -> Result<Settings, toml::de::Error> {
        toml::from_str(&format!("{LEAST}{network}"))
    }

    #[test]
    fn a_network_table_keeps_the_defaults_of_this_daemon_for_what_it_does_not_name() {
        let metadata = TransportSettings::metadata();
        assert_eq!(parse("").unwrap().network, metadata);
        assert_eq!(parse("[network]").unwrap().network, metadata);
        let settings = parse("[network]\nmtu = 1452\nhandshakes_max = 9").unwrap();
        let named = TransportSettings { handshakes_max: 9, ..metadata };
        let named = TransportSettings { mtu: millrace_transport::Mtu::Bytes(1452), ..named };
        assert_eq!(settings.network, named);
    }

    #[test]
    fn an_unknown_or_wrong_key_of_the_network_table_is_refused_by_name() {
        let unknown = parse("[network]\nbulk_socket = 2").unwrap_err().to_string();
        assert!(unknown.contains("bulk_socket"), "{unknown}");
        assert!(parse("[network]\nmtu = \"big\"").is_err());
        let settings = parse("[network]\nbulk_sockets = 9").unwrap();
        let refused = settings.check().unwrap_err();
        assert!(refused.contains("bulk_sockets"), "{refused}");
    }

    #[test]
    fn effective_settings_read_back() {
        let settings = parse("[network]\nserver_sockets = 2").unwrap();
        let printed = toml::to_string(&settings).unwrap();
        assert_eq!(toml::from_str::<Settings>(&printed).unwrap(), settings);
    }

    #[test]
    fn the_store_is_a_merge_tree_and_so_is_what_older_settings_call_fjall() {
        let engine = |store: &str| parse(store).unwrap().store.engine;
        assert_eq!(engine(""), StoreKind::Lsm);
        assert_eq!(engine("[store]\nengine = \"fjall\""), StoreKind::Lsm);
        assert_eq!(engine("[store]\nengine = \"sled\""), StoreKind::Sled);
        assert!(parse("[store]\nengine = \"rocks\"").is_err());
    }
}
