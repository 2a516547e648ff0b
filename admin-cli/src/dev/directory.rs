//! The files of a dev cluster: where they are, and what `dev up` writes into them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use millrace_protocol::session::Role;
use millrace_service::{address::ServerAddress, cluster::ClusterSettings};
use millrace_transport::Authority;
use millrace_types::ByteLen;
use toml::{Table, Value};

use crate::{
    authority,
    commands::mount::CLIENT_FILE,
    dev::{
        daemon::Daemon,
        plan::{MountPlan, Plan, loopback, replace},
    },
    programs,
    settings::{ADMIN_FILE, AdminSettings},
};

/// A dev cluster's directory, absolute.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    root: PathBuf,
}

impl Directory {
    /// The directory `root`, made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn make(root: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
        Self::existing(root)
    }

    /// The directory `root`, which must exist.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn existing(root: &Path) -> anyhow::Result<Self> {
        // Without symbolic links, so that two names of one directory are one cluster.
        let root =
            root.canonicalize().with_context(|| format!("cannot find {}", root.display()))?;
        Ok(Self { root })
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The metadata server's daemon.
    pub(crate) fn metadata(&self, plan: &Plan) -> Daemon {
        let directory = self.root.join("metadata");
        let settings = settings_of_metadata(&directory, plan);
        Daemon {
            name: "metadata".to_owned(),
            role: "metadata",
            program: programs::METADATA,
            settings_file: directory.join("metadata.toml"),
            directory,
            settings,
            arguments: Vec::new(),
            address: loopback(plan.metadata_port).to_string(),
        }
    }

    /// The daemons of the targets: one process each, as if each had a host of its own.
    pub(crate) fn targets(&self, plan: &Plan) -> Vec<Daemon> {
        let daemon = |(number, &port): (usize, &u16)| {
            let name = format!("target-{number}");
            let directory = self.root.join(&name);
            Daemon {
                settings: settings_of_target(&directory, plan, &name, port),
                name,
                role: "target",
                program: programs::TARGET,
                settings_file: directory.join("target.toml"),
                directory,
                arguments: Vec::new(),
                address: loopback(port).to_string(),
            }
        };
        plan.target_ports.iter().enumerate().map(daemon).collect()
    }

    /// The daemons of the mounts.
    pub(crate) fn mounts(&self, plan: &Plan) -> Vec<Daemon> {
        let daemon = |mount: &MountPlan| {
            let name = format!("mount-{}", mount.number);
            let directory = self.root.join(&name);
            let mut arguments = Vec::new();
            if !mount.options.is_empty() {
                arguments = vec!["-o".into(), mount.options.clone().into()];
            }
            Daemon {
                name,
                role: "mount",
                program: programs::FUSE,
                settings_file: directory.join("mount.toml"),
                directory,
                settings: self.settings_of_mount(plan, Some(&mount.mountpoint)),
                arguments,
                address: mount.mountpoint.display().to_string(),
            }
        };
        plan.mounts.iter().map(daemon).collect()
    }

    /// Makes what is missing of the authority and the identities, and writes all settings anew.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub(crate) fn prepare(&self, plan: &Plan) -> anyhow::Result<()> {
        let authority = match authority::read(&self.root)? {
            Some(authority) => authority,
            None => authority::create(&self.root)?,
        };
        let admin = authority::admin_file(&self.root);
        identity(&authority, Role::Admin, &admin)?;
        identity(&authority, Role::Client, &self.client_identity())?;
        for (role, daemon) in self.servers(plan) {
            daemon.write_settings()?;
            identity(&authority, role, &daemon.directory.join(IDENTITY_FILE))?;
        }
        for daemon in self.mounts(plan) {
            daemon.write_settings()?;
        }
        let client = self.settings_of_mount(plan, None);
        let client = toml::to_string(&client).context("cannot write settings")?;
        replace(&self.root.join(CLIENT_FILE), client.as_bytes())?;
        let admin = toml::to_string(&self.admin_settings(plan)).context("cannot write settings")?;
        replace(&self.root.join(ADMIN_FILE), admin.as_bytes())
    }

    /// The operator's settings for this cluster.
    pub(crate) fn admin_settings(&self, plan: &Plan) -> AdminSettings {
        AdminSettings {
            cluster: ClusterSettings {
                servers: vec![ServerAddress::from(loopback(plan.metadata_port))],
                identity: authority::admin_file(&self.root),
            },
        }
    }

    fn servers(&self, plan: &Plan) -> impl Iterator<Item = (Role, Daemon)> {
        let targets = self.targets(plan).into_iter().map(|daemon| (Role::Target, daemon));
        [(Role::Metadata, self.metadata(plan))].into_iter().chain(targets)
    }

    fn client_identity(&self) -> PathBuf {
        self.root.join("client.pem")
    }

    fn settings_of_mount(&self, plan: &Plan, mountpoint: Option<&Path>) -> Table {
        let mut settings = Table::new();
        settings.insert("cluster".into(), cluster(plan, &self.client_identity()));
        if let Some(mountpoint) = mountpoint {
            settings.insert("mount".into(), table([("mountpoint", text(mountpoint))]));
        }
        settings
    }
}

fn settings_of_metadata(directory: &Path, plan: &Plan) -> Table {
    let listen = loopback(plan.metadata_port).to_string();
    let mut settings = Table::new();
    settings.insert("listen".into(), Value::String(listen));
    settings.insert("identity".into(), text(&directory.join(IDENTITY_FILE)));
    settings.insert("data".into(), text(&directory.join(DATA)));
    if let Some(file) = &plan.credentials {
        settings.insert("buckets".into(), buckets(file));
    }
    settings
}

fn settings_of_target(directory: &Path, plan: &Plan, name: &str, port: u16) -> Table {
    let listen = loopback(port).to_string();
    let mut settings = Table::new();
    settings.insert("cluster".into(), cluster(plan, &directory.join(IDENTITY_FILE)));
    settings.insert("listen".into(), Value::String(listen));
    settings.insert("name".into(), Value::String(name.to_owned()));
    let mut target = Table::new();
    target.insert("directory".into(), text(&directory.join(DATA)));
    if let Some(ByteLen(bytes)) = plan.capacity {
        target.insert("capacity".into(), Value::String(bytes.to_string()));
    }
    if let Some(file) = &plan.credentials {
        settings.insert("buckets".into(), buckets(file));
    }
    settings.insert("target".into(), Value::Array(vec![Value::Table(target)]));
    settings
}

/// The same table for every daemon that reaches buckets.
fn buckets(credentials: &Path) -> Value {
    table([("credentials_file", text(credentials))])
}

fn cluster(plan: &Plan, identity: &Path) -> Value {
    let server = Value::String(loopback(plan.metadata_port).to_string());
    table([("servers", Value::Array(vec![server])), ("identity", text(identity))])
}

fn table<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Table(entries.map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
}

/// TOML is UTF-8; a path that is not is refused by the daemon, which does not find it.
fn text(path: &Path) -> Value {
    Value::String(path.display().to_string())
}

fn identity(authority: &Authority, role: Role, path: &Path) -> anyhow::Result<()> {
    if !path.exists() {
        authority::issue(authority, &authority::whole(role), path)?;
    }
    Ok(())
}

const IDENTITY_FILE: &str = "identity.pem";
/// Where a daemon keeps what it stores, in its directory.
pub(crate) const DATA: &str = "data";

#[cfg(test)]
mod tests {
    use millrace_transport::Identity;

    use super::*;

    #[test]
    fn preparing_twice_keeps_identities_and_admin_settings_load() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::make(&temporary.path().join("d")).unwrap();
        let mut plan = Plan::new(2).unwrap();
        plan.mount("/mnt/x".into(), None);
        directory.prepare(&plan).unwrap();
        let host = |name: &str| {
            let path = directory.root().join(name);
            Identity::load(&path).unwrap().peer().host
        };
        let names = ["admin.pem", "client.pem", "metadata/identity.pem", "target-1/identity.pem"];
        let first = names.map(host);
        directory.prepare(&plan).unwrap();
        assert_eq!(names.map(host), first);
        let globals = crate::arguments::Globals {
            dir: Some(directory.root().to_owned()),
            ..Default::default()
        };
        let settings = AdminSettings::load(&globals).unwrap();
        assert_eq!(settings, directory.admin_settings(&plan));
    }

    #[test]
    fn every_daemon_is_named_by_a_file_below_the_directory() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::existing(temporary.path()).unwrap();
        let mut plan = Plan::new(3).unwrap();
        plan.mount("/mnt/x".into(), Some("ro".into()));
        let mut daemons = directory.targets(&plan);
        daemons.push(directory.metadata(&plan));
        daemons.extend(directory.mounts(&plan));
        assert_eq!(daemons.len(), 5);
        for daemon in &daemons {
            assert!(daemon.settings_file.starts_with(directory.root()), "{}", daemon.name);
        }
    }
}
