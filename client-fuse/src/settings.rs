//! Every knob of a mount: one TOML file, arguments of the command line, and `-o` options.

use std::{path::PathBuf, time::Duration};

use millrace_service::{
    address::{METADATA_PORT, ServerAddress},
    cluster::ClusterSettings,
    daemon::DaemonSettings,
    duration,
    metrics::MetricsSettings,
    mount_options::{MountOption, OptionError, Switch},
    processors::ProcessorSettings,
    telemetry::LogSettings,
};
use millrace_transport::TransportSettings;
use millrace_types::{ByteLen, MIB};
use serde::{Deserialize, Deserializer, Serialize};

use crate::cache::access_times::Followed;

pub use millrace_service::mount_options::Channel;

/// Settings of one mount.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where the cluster is, and who this host is. Needed, here or on the command line.
    pub cluster: Option<ClusterSettings>,
    /// What is mounted where, and how.
    pub mount: MountSettings,
    /// The memory for file bytes.
    pub cache: CacheSettings,
    /// The table `[network]`. Defaults, also of what a table leaves out, are those of a mount: a
    /// socket for the bytes of files for every four processors.
    #[serde(deserialize_with = "network")]
    pub network: TransportSettings,
    /// The log.
    pub log: LogSettings,
    /// The metrics endpoint.
    pub metrics: MetricsSettings,
    /// What idle processors do.
    pub processors: ProcessorSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster: None,
            mount: MountSettings::default(),
            cache: CacheSettings::default(),
            network: TransportSettings::mount(),
            log: LogSettings::default(),
            metrics: MetricsSettings::default(),
            processors: ProcessorSettings::default(),
        }
    }
}

fn network<'de, D: Deserializer<'de>>(named: D) -> Result<TransportSettings, D::Error> {
    TransportSettings::over(&TransportSettings::mount(), named)
}

/// The table `[mount]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct MountSettings {
    /// The directory to mount on. Needed, here or on the command line.
    pub mountpoint: Option<PathBuf>,
    /// The directory of the file system to show. Default `/`; a certificate for a subtree begins
    /// at that subtree.
    pub path: PathBuf,
    /// What mount tables show as the source. Default: the cluster's id and the directory.
    pub source: Option<String>,
    /// Refuse every change. Default false.
    pub read_only: bool,
    /// Let other users in, with the permissions of the files. Default: when mounted by root.
    pub allow_other: Option<bool>,
    /// Honour setuid and setgid bits of programs. Default false.
    pub suid: bool,
    /// Honour device nodes. Default false.
    pub dev: bool,
    /// Let programs be run. Default true.
    pub exec: bool,
    /// How long an operation waits for servers that do not answer before it fails with EIO.
    /// Default 10 minutes.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Wait for ever instead. Default false.
    pub hard: bool,
    /// Keep locks of programs (flock, fcntl) within this host. Default false: they hold over all
    /// hosts, and cost a request each.
    pub local_locks: bool,
    /// Keep and check POSIX access control lists. Default false: with them `ls -l` asks about each
    /// file, which makes it up to ten times slower.
    pub acl: bool,
    /// Offer extended attributes `security.*`, such as the capabilities of programs. Default
    /// false: with them the kernel asks for one before it writes or runs a file, and `ls` for each
    /// file.
    pub security_xattrs: bool,
    /// Make files here in directories that no other mount uses: the metadata server hears of them
    /// when they are closed. Default true.
    pub delegations: bool,
    /// Let reading leave times of access alone. Default false: it moves them as Linux's `relatime`
    /// has it. A mount that refuses every change leaves them alone, too.
    pub noatime: bool,
    /// Let listing a directory leave its time of access alone. Default false.
    pub nodiratime: bool,
    /// How long times of access wait before the metadata server is told of them, at least a
    /// second. Default 1 minute. Sooner where there are many, and at the end of the mount.
    #[serde(with = "duration")]
    pub access_period: Duration,
    /// How requests come from the kernel. Default [`Channel::Auto`].
    pub channel: Channel,
    /// Threads that take requests from the kernel, 1 to 64. Default: one a processor, at most 4.
    /// With the channel `uring` there is one a processor, and these read what comes otherwise.
    pub threads: Option<u16>,
}

impl MountSettings {
    /// Whose times of access the mount keeps.
    pub(crate) fn followed_access_times(&self) -> Followed {
        let files = !self.noatime && !self.read_only;
        Followed { files, directories: files && !self.nodiratime }
    }

    fn set(&mut self, switch: Switch, on: bool) {
        match switch {
            Switch::ReadOnly => self.read_only = on,
            Switch::AllowOther => self.allow_other = Some(on),
            Switch::Suid => self.suid = on,
            Switch::Dev => self.dev = on,
            Switch::Exec => self.exec = on,
            Switch::Hard => self.hard = on,
            Switch::LocalLocks => self.local_locks = on,
            Switch::Acl => self.acl = on,
            Switch::SecurityXattrs => self.security_xattrs = on,
            Switch::Delegations => self.delegations = on,
            Switch::NoAtime => self.noatime = on,
            Switch::NoDirAtime => self.nodiratime = on,
        }
    }
}

impl Default for MountSettings {
    fn default() -> Self {
        Self {
            mountpoint: None,
            path: PathBuf::from("/"),
            source: None,
            read_only: false,
            allow_other: None,
            suid: false,
            dev: false,
            exec: true,
            timeout: Duration::from_secs(600),
            hard: false,
            local_locks: false,
            acl: false,
            security_xattrs: false,
            delegations: true,
            noatime: false,
            nodiratime: false,
            access_period: Duration::from_secs(60),
            channel: Channel::Auto,
            threads: None,
        }
    }
}

/// The table `[cache]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct CacheSettings {
    /// Bytes for read-ahead and write-behind of all files together, at least 16 MiB. Default
    /// 128 MiB. More helps where many files are streamed at a time, or the bucket is far away.
    pub memory: ByteLen,
    /// Bytes for what is kept under leases: half for names and attributes, half for what lets files
    /// be opened for reading without asking. Default 128 MiB: some 200,000 names, and 110,000 files
    /// to be opened so; 0 keeps none. A mount takes 8 MiB besides, to tell what was taken back.
    pub names: ByteLen,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { memory: ByteLen(128 * MIB), names: ByteLen(128 * MIB) }
    }
}

/// The least memory: one window of read-ahead for a few streams, and writes beside it.
const MEMORY_MIN: u64 = 16 * MIB;

impl DaemonSettings for Settings {
    fn log(&self) -> &LogSettings {
        &self.log
    }

    fn processors(&self) -> &ProcessorSettings {
        &self.processors
    }

    fn check(&self) -> Result<(), String> {
        self.complete().map_err(|error| error.to_string())
    }
}

/// What the command line says beyond the settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The directory to mount on.
    pub mountpoint: Option<PathBuf>,
    /// The identity bundle.
    pub identity: Option<PathBuf>,
    /// The metadata servers.
    pub servers: Vec<ServerAddress>,
    /// What mount tables show as the source.
    pub source: Option<String>,
    /// Options as of mount(8), separated by commas.
    pub options: Vec<String>,
}

impl Settings {
    /// Applies the command line and checks that everything needed is there and in range.
    ///
    /// # Errors
    /// [`SettingsError`] says what is missing or wrong, and what would be right.
    pub fn with(mut self, overrides: Overrides) -> Result<Self, SettingsError> {
        if let Some(mountpoint) = overrides.mountpoint {
            self.mount.mountpoint = Some(mountpoint);
        }
        self.mount.source = overrides.source.or(self.mount.source);
        let mut identity = overrides.identity;
        for options in &overrides.options {
            for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
                self.apply(option.parse()?, &mut identity)?;
            }
        }
        self.cluster = match (self.cluster, identity, overrides.servers) {
            (Some(mut cluster), identity, servers) => {
                cluster.identity = identity.unwrap_or(cluster.identity);
                if !servers.is_empty() {
                    cluster.servers = servers;
                }
                Some(cluster)
            }
            (None, Some(identity), servers) if !servers.is_empty() => {
                Some(ClusterSettings { servers, identity })
            }
            _ => return Err(SettingsError::NoCluster),
        };
        self.complete()?;
        Ok(self)
    }

    /// Whether everything needed is there and in range.
    fn complete(&self) -> Result<(), SettingsError> {
        if self.cluster.as_ref().is_none_or(|cluster| cluster.servers.is_empty()) {
            return Err(SettingsError::NoCluster);
        }
        if self.mount.mountpoint.is_none() {
            return Err(SettingsError::NoMountpoint);
        }
        if !self.mount.path.is_absolute() {
            return Err(SettingsError::RelativePath(self.mount.path.clone()));
        }
        if self.cache.memory.0 < MEMORY_MIN {
            return Err(SettingsError::Memory(self.cache.memory));
        }
        if self.mount.access_period < Duration::from_secs(1) {
            return Err(SettingsError::AccessPeriod(self.mount.access_period));
        }
        self.network.check()?;
        match self.mount.threads {
            Some(threads) if !(1..=64).contains(&threads) => Err(SettingsError::Threads(threads)),
            _ => Ok(()),
        }
    }

    /// Does what an option says; an identity is kept for who knows the servers.
    fn apply(
        &mut self,
        option: MountOption,
        identity: &mut Option<PathBuf>,
    ) -> Result<(), SettingsError> {
        match option {
            MountOption::Switch(switch, on) => self.mount.set(switch, on),
            MountOption::Timeout(timeout) => self.mount.timeout = timeout,
            MountOption::Memory(bytes) => self.cache.memory = bytes,
            MountOption::Channel(channel) => self.mount.channel = channel,
            MountOption::Path(path) => self.mount.path = path,
            MountOption::Identity(path) => *identity = Some(path),
            MountOption::Config(_) => return Err(SettingsError::OfTheTool("config=")),
            MountOption::Log(_) => return Err(SettingsError::OfTheTool("log=")),
            MountOption::Foreign => {}
        }
        Ok(())
    }
}

/// One or several metadata servers, separated by commas; without a port, the default one.
///
/// # Errors
/// The part that is no address.
pub fn parse_servers(text: &str) -> Result<Vec<ServerAddress>, String> {
    text.split(',')
        .map(|part| ServerAddress::parse_with_port(part.trim(), METADATA_PORT))
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// Settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Nobody says where the cluster is.
    #[error(
        "no cluster: set [cluster] servers and identity in the settings file, or give --metadata \
         HOST:PORT and --identity FILE"
    )]
    NoCluster,
    /// Nobody says where to mount.
    #[error("no mount point: set mountpoint in [mount], or give --mountpoint DIR")]
    NoMountpoint,
    /// The path to show is not absolute.
    #[error("the path to mount must begin with /: {}", .0.display())]
    RelativePath(PathBuf),
    /// The memory is too small to work with.
    #[error("cache.memory = {0} is too little; 16 MiB is the least")]
    Memory(ByteLen),
    /// Times of access would be told all the time.
    #[error("mount.access_period = {0:?} is too short; 1s is the least")]
    AccessPeriod(Duration),
    /// The number of threads is out of range.
    #[error("mount.threads = {0} is out of range; 1 to 64")]
    Threads(u16),
    /// A value of the network's is out of range.
    #[error("[network]: {0}")]
    Network(#[from] millrace_transport::settings::SettingsError),
    /// An option cannot be followed.
    #[error(transparent)]
    MountOption(#[from] OptionError),
    /// An option is for who starts the daemon.
    #[error("mount option {0} is for `millrace mount`, not for the daemon that it starts")]
    OfTheTool(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(options: &str) -> Overrides {
        Overrides {
            mountpoint: Some("/mnt".into()),
            identity: Some("client.pem".into()),
            servers: parse_servers("meta-1,meta-2:9").expect("two addresses"),
            source: None,
            options: vec![options.to_owned()],
        }
    }

    #[test]
    fn options_win_over_the_file_and_mounts_words_are_left_alone() {
        let settings = Settings::default()
            .with(overrides(
                "_netdev,ro,timeout=30,memory=64M,x-systemd.automount,hard,path=/a,channel=uring,\
                 local_locks,acl,security_xattrs,nosecurity_xattrs,noatime",
            ))
            .expect("all are known");
        assert!(settings.mount.read_only && settings.mount.hard && settings.mount.local_locks);
        assert!(settings.mount.acl && !settings.mount.security_xattrs && settings.mount.noatime);
        assert_eq!(settings.mount.timeout, Duration::from_secs(30));
        assert_eq!(settings.cache.memory, ByteLen(64 * MIB));
        assert_eq!(settings.mount.path, PathBuf::from("/a"));
        assert_eq!(settings.mount.channel, Channel::Uring);
        let cluster = settings.cluster.expect("given");
        assert_eq!(cluster.servers.len(), 2);
    }

    #[test]
    fn times_of_access_follow_reads_unless_an_option_says_otherwise() {
        let followed = |options| {
            let settings = Settings::default().with(overrides(options)).expect("known");
            let Followed { files, directories } = settings.mount.followed_access_times();
            (files, directories)
        };
        assert_eq!(followed(""), (true, true));
        assert_eq!(followed("noatime,relatime"), (true, true));
        assert_eq!(followed("noatime"), (false, false));
        assert_eq!(followed("nodiratime"), (true, false));
        assert_eq!(followed("ro"), (false, false), "nothing is changed through such a mount");
    }

    #[test]
    fn a_network_table_keeps_the_defaults_of_a_mount_for_what_it_does_not_name() {
        let read = |text| toml::from_str::<Settings>(text).map(|settings| settings.network);
        assert_eq!(read("").unwrap(), TransportSettings::mount());
        let named = TransportSettings { linger_ms: 5_000, ..TransportSettings::mount() };
        assert_eq!(read("[network]\nlinger_ms = 5000").unwrap(), named);
        assert!(read("[network]\nlinger = 5").is_err());
        let mut settings = Settings::default();
        settings.network.bulk_sockets = 9;
        let refused = settings.with(overrides("ro")).unwrap_err().to_string();
        assert!(refused.contains("bulk_sockets is 9"), "{refused}");
    }

    #[test]
    fn mistakes_are_named_with_what_would_be_right() {
        let error = |options| {
            let refused = Settings::default().with(overrides(options));
            refused.expect_err("wrong").to_string()
        };
        assert!(error("writeback").contains("\"writeback\""));
        assert!(error("timeout=soon").contains("seconds"));
        assert!(error("channel=fast").contains("uring"));
        assert!(error("strictatime").contains("relatime"));
        assert!(error("memory=1M").contains("16 MiB"));
        let relative = error("path=a");
        assert!(relative.contains("\"path=a\"") && relative.contains("absolute"), "{relative}");
        assert!(error("log=/l").contains("millrace mount"));
        let nothing = Settings::default().with(Overrides::default());
        assert_eq!(nothing, Err(SettingsError::NoCluster));
    }
}
