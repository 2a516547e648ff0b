//! Every knob of the daemon: unit, default, cost.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use millrace_protocol::cluster::TARGETS_PER_HOST_MAX;
use millrace_service::{
    address::TARGET_PORT, cluster::ClusterSettings, daemon::DaemonSettings,
    metrics::MetricsSettings, processors::ProcessorSettings, telemetry::LogSettings,
};
use millrace_transport::TransportSettings;
use millrace_types::{ByteLen, GIB, MIB, TargetId};
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::{
    disk::DiskEngine,
    format::superblock::Layout,
    page_checksum::PAGE,
    release::{LOW_MAX, Watermarks},
    run::StartError,
    volume::ScrubSettings,
};

/// The most addresses that a cluster takes of a daemon.
const ADVERTISED_MAX: usize = 8;

/// The settings of `millrace-target`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where clients and other servers reach this daemon. Default `[::]:7441`; on a host with
    /// several networks, the address of the fast one. With `[::]` or `0.0.0.0` the cluster map
    /// names the address from which the host reaches the metadata server, or, where that is the
    /// same host, other hosts.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// The addresses that the cluster map shall name instead of the one listened on: 1 to 8. Needed
    /// behind address translation, or to prefer one of several networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advertise: Vec<SocketAddr>,
    /// The name that people see. Default: the host's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where the only target lies, for hosts with one disk: a directory, a block device or an image
    /// file; see `target` for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// The disk engine of all targets: `"auto"` takes io_uring where the kernel allows it,
    /// `"io-uring"` insists on it, `"blocking"` uses threads.
    #[serde(default)]
    pub disk_engine: DiskEngine,
    /// Memory for bytes between disk, bucket and network, of all targets together. Default 160 MiB;
    /// each MiB is a transfer under way, and 8 transfers for each NVMe drive keep it busy.
    #[serde(default = "default_buffer_memory")]
    pub buffer_memory: ByteLen,
    /// Memory for the index of each target, 1 MiB to 64 GiB. Default 64 MiB. What it does not hold
    /// costs one more read of 4 KiB: 64 MiB hold that of 40 GiB in large files, or of
    /// half a million small ones.
    #[serde(default = "default_index_cache", deserialize_with = "index_cache")]
    pub index_cache: ByteLen,
    /// How the cluster is found.
    pub cluster: ClusterSettings,
    /// The targets, one for each disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<TargetSettings>,
    /// How the disks are checked.
    #[serde(default)]
    pub scrub: ScrubTable,
    /// When bytes that a bucket has too make room for others.
    #[serde(default, deserialize_with = "release")]
    pub release: ReleaseTable,
    /// How buckets are reached.
    #[serde(default)]
    pub buckets: BucketSettings,
    /// The table `[network]`. Defaults, also of what a table leaves out, are those of a server of
    /// bulk: a socket for every four processors.
    #[serde(default = "TransportSettings::target", deserialize_with = "network")]
    pub network: TransportSettings,
    /// Logs.
    #[serde(default)]
    pub log: LogSettings,
    /// Metrics.
    #[serde(default)]
    pub metrics: MetricsSettings,
    /// What idle processors do.
    #[serde(default)]
    pub processors: ProcessorSettings,
}

/// One target.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct TargetSettings {
    /// A directory on a file system of its own, a block device or an image file. An empty one
    /// becomes a new target; one of another cluster is refused.
    pub directory: PathBuf,
    /// The most bytes that it takes of its disk, 49 MiB at least: the journal has 1/64 of it, 16 to
    /// 64 MiB, and the rest is given out 32 MiB at a time. Default: what the file system has free,
    /// less 256 MiB; all of a device or image file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteLen>,
    /// The id that the disk must hold: a safeguard against disks in the wrong place, and against
    /// an empty directory where a disk should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<TargetId>,
}

/// The table `[scrub]`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct ScrubTable {
    /// The most bytes a second that the check of each target reads; 0 switches it off. Default
    /// 32 MiB: 16 TiB in six days, a fifth of what a disk that turns can do.
    pub rate: ByteLen,
    /// From the beginning of one pass to that of the next. Default 7 days.
    #[serde(with = "millrace_service::duration")]
    pub interval: Duration,
}

impl Default for ScrubTable {
    fn default() -> Self {
        let ScrubSettings { bytes_per_second, interval } = ScrubSettings::default();
        Self { rate: ByteLen(bytes_per_second), interval }
    }
}

impl ScrubTable {
    pub(crate) fn scrub(self) -> ScrubSettings {
        ScrubSettings { bytes_per_second: self.rate.0, interval: self.interval }
    }
}

/// The table `[release]`: shares of what a target can hold, in percent.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct ReleaseTable {
    /// Fuller than this, a target drops what was used longest ago of what its buckets have too.
    /// 100: only when a change finds no space. Default 90: at 95 `millrace status` warns.
    pub high: u8,
    /// So full it is then: not above `high`, 95 at most. Default 85.
    pub low: u8,
}

impl Default for ReleaseTable {
    fn default() -> Self {
        Self { high: 90, low: 85 }
    }
}

impl ReleaseTable {
    pub(crate) fn watermarks(self) -> Watermarks {
        Watermarks { high: self.high, low: self.low }
    }
}

/// The table `[buckets]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct BucketSettings {
    /// The file with named credentials; read again when it changes. Without it links use the
    /// environment (`AWS_ACCESS_KEY_ID` and so on) or the cloud's instance roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Requests in flight to one bucket. Default 64.
    pub requests_max: usize,
    /// Bytes in flight to and from one bucket. Default 256 MiB.
    pub bytes_max: ByteLen,
    /// How long a bucket may stay silent in the middle of an answer, or send less than 1 KiB/s.
    /// What is sent to it has a second more for each 128 KiB. The answer to a change may take ten
    /// times as long in all, and that to the end of an upload ten minutes at least. Default 60 s.
    #[serde(with = "millrace_service::duration")]
    pub read_timeout: Duration,
}

impl Default for BucketSettings {
    fn default() -> Self {
        let defaults = millrace_object_source::Settings::default();
        Self {
            credentials_file: None,
            requests_max: defaults.requests_in_flight_max,
            bytes_max: defaults.bytes_in_flight_max,
            read_timeout: defaults.read_timeout,
        }
    }
}

impl BucketSettings {
    pub(crate) fn object_source(&self) -> millrace_object_source::Settings {
        millrace_object_source::Settings {
            credentials_file: self.credentials_file.clone(),
            requests_in_flight_max: self.requests_max,
            bytes_in_flight_max: self.bytes_max,
            read_timeout: self.read_timeout,
            ..millrace_object_source::Settings::default()
        }
    }
}

impl DaemonSettings for Settings {
    fn log(&self) -> &LogSettings {
        &self.log
    }

    fn processors(&self) -> &ProcessorSettings {
        &self.processors
    }

    fn check(&self) -> Result<(), String> {
        let targets = self.targets();
        if targets.is_empty() {
            return Err(StartError::NoTarget.to_string());
        }
        // The cluster takes none of a daemon with more.
        if targets.len() > TARGETS_PER_HOST_MAX {
            let count = targets.len();
            return Err(format!("{count} targets: a daemon serves {TARGETS_PER_HOST_MAX} at most"));
        }
        let mut places: Vec<_> = targets.iter().map(place).collect();
        places.sort_unstable();
        if let Some(pair) = places.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("two targets lie in {}", pair[0].display()));
        }
        let mut ids: Vec<_> = targets.iter().filter_map(|target| target.id).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("two targets have the id {}", pair[0]));
        }
        let least = ByteLen(Layout::capacity_min() * PAGE as u64);
        if targets.iter().filter_map(|target| target.capacity).any(|capacity| capacity < least) {
            return Err(format!("target.capacity must be at least {least}"));
        }
        if self.cluster.servers.is_empty() {
            return Err("cluster.servers must name a metadata server".to_owned());
        }
        if self.advertise.len() > ADVERTISED_MAX {
            return Err(format!("advertise names more than {ADVERTISED_MAX} addresses"));
        }
        let is_none = |address: &&SocketAddr| address.ip().is_unspecified() || address.port() == 0;
        if let Some(address) = self.advertise.iter().find(is_none) {
            return Err(format!("advertise: nobody can reach a daemon at {address}"));
        }
        self.network.check().map_err(|error| format!("[network]: {error}"))
    }
}

impl Settings {
    /// The targets, with the short form spelt out.
    #[must_use]
    pub fn targets(&self) -> Vec<TargetSettings> {
        let short = self.data.iter().map(|directory| TargetSettings {
            directory: directory.clone(),
            capacity: None,
            id: None,
        });
        short.chain(self.target.iter().cloned()).collect()
    }
}

/// Where a target lies, whatever links lead there, such as those of `/dev/disk`.
fn place(target: &TargetSettings) -> PathBuf {
    std::fs::canonicalize(&target.directory).unwrap_or_else(|_| target.directory.clone())
}

/// What the table leaves out is as for a server of bulk; the type's own defaults are not.
fn network<'de, D: Deserializer<'de>>(named: D) -> Result<TransportSettings, D::Error> {
    TransportSettings::over(&TransportSettings::target(), named)
}

fn default_listen() -> SocketAddr {
    SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), TARGET_PORT)
}

fn default_buffer_memory() -> ByteLen {
    ByteLen(160 * MIB)
}

fn default_index_cache() -> ByteLen {
    ByteLen(64 * MIB)
}

/// Less than 1 MiB would read the inner nodes again with each look-up.
const INDEX_CACHE: RangeInclusive<u64> = MIB..=64 * GIB;

fn index_cache<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteLen, D::Error> {
    let bytes = ByteLen::deserialize(deserializer)?;
    match INDEX_CACHE.contains(&bytes.0) {
        true => Ok(bytes),
        false => Err(D::Error::custom(format!("{bytes} is out of range; 1 MiB to 64 GiB"))),
    }
}

fn release<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReleaseTable, D::Error> {
    let table = ReleaseTable::deserialize(deserializer)?;
    match table.low <= table.high.min(LOW_MAX) && table.high <= 100 {
        true => Ok(table),
        false => Err(D::Error::custom(
            "low and high are percentages, low not above high, and 95 at most",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME_ID: &str = "00010203fcfdfeff";

    fn checked(text: &str) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("target.toml");
        let cluster = "[cluster]\nservers = ['meta-1:7440']\nidentity = '/i.pem'\n";
        let servers = if text.contains("[cluster]") { "" } else { cluster };
        std::fs::write(&file, format!("{text}\n{servers}")).unwrap();
        let loaded = millrace_service::config::load_with::<Settings>(Some(&file), "MILLRACE_", []);
        loaded.unwrap().check()
    }

    #[test]
    fn a_disk_under_two_names_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, link) = (directory.path().join("disk"), directory.path().join("link"));
        std::fs::create_dir(&disk).unwrap();
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        let table = |path| format!("[[target]]\ndirectory = {path:?}\n");
        let refused = checked(&[table(&disk), table(&link)].concat()).unwrap_err();
        assert!(refused.contains("two targets lie in"), "{refused}");
    }

    #[test]
    fn what_a_start_would_refuse_is_refused_before_by_name() {
        for sound in [
            "data = '/d'",
            "data = '/d'\nadvertise = ['10.1.0.7:7441', '[2001:db8::7]:7441']",
            "[[target]]\ndirectory = '/a'\ncapacity = '49MiB'\n[[target]]\ndirectory = '/b'",
        ] {
            assert_eq!(checked(sound), Ok(()), "{sound}");
        }
        let nobody = "data = '/d'\n[cluster]\nservers = []\nidentity = '/i.pem'";
        let many = format!("data = '/d'\nadvertise = {:?}", ["10.1.0.7:7441"; 9]);
        let one = |directory| format!("[[target]]\ndirectory = '{directory}'\nid = '{SOME_ID}'\n");
        let twice = [one("/a"), one("/b")].concat();
        let tables = |count: usize| -> String {
            (0..count).map(|number| format!("[[target]]\ndirectory = '/{number}'\n")).collect()
        };
        let (most, crowd) = (tables(64), tables(65));
        assert_eq!(checked(&most), Ok(()));
        for (wrong, word) in [
            ("", "no target"),
            ("data = '/d'\n[[target]]\ndirectory = '/d'", "/d"),
            (twice.as_str(), SOME_ID),
            (crowd.as_str(), "64 at most"),
            ("[[target]]\ndirectory = '/a'\ncapacity = '48MiB'", "49 MiB"),
            (nobody, "cluster.servers"),
            ("data = '/d'\nadvertise = ['0.0.0.0:7441']", "0.0.0.0:7441"),
            ("data = '/d'\nadvertise = ['[::]:7441']", "advertise"),
            ("data = '/d'\nadvertise = ['10.1.0.7:0']", "10.1.0.7:0"),
            (many.as_str(), "advertise"),
            ("data = '/d'\n[network]\nbulk_sockets = 9", "bulk_sockets"),
        ] {
            let refused = checked(wrong).unwrap_err();
            assert!(refused.contains(word), "{wrong}: {refused}");
        }
    }
}
