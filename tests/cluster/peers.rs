//! Peers that do not belong: garbage, no certificate, another cluster's certificate, a wrong role.

use std::{fs, net::UdpSocket, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{Said, binaries, finish},
};

/// A refused peer must hear so, and not wait for a timeout of its own.
const REFUSAL: Duration = Duration::from_secs(60);

#[test]
fn garbage_on_every_port_harms_nothing() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    fs::write(&path, "before")?;
    let before = cluster.daemons();
    for name in ["metadata", "target-0", "target-1"] {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(cluster.address(name)?)?;
        // A linear congruential sequence: any bytes will do, the same in every run.
        let mut state = 1_u64;
        for len in (0..2_000).map(|index| index % 1_400) {
            let mut datagram = Vec::with_capacity(len);
            while datagram.len() < len {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                datagram.push(state.to_be_bytes()[0]);
            }
            // A full socket buffer drops a datagram, which is as good.
            drop(socket.send(&datagram));
        }
    }
    fs::write(&path, "after")?;
    assert_eq!(fs::read(&path)?, b"after");
    assert_eq!(cluster.daemons(), before, "no daemon has died");
    Ok(())
}

#[test]
fn an_identity_of_another_cluster_is_refused_and_logged() -> Result<()> {
    let ours = Cluster::start(Wish::default())?;
    let theirs = tempfile::tempdir()?;
    let dir = theirs.path().join("authority");
    millrace(&["cluster", "init", "--dir", text(&dir)?])?.ok()?;
    let identity = invite(&dir, "admin", &theirs.path().join("admin.pem"))?;
    let said = status_with(&ours, &identity)?;
    assert!(!said.succeeded(), "{said}");
    assert_refusal_is_logged(&ours)
}

#[test]
fn an_identity_of_the_wrong_role_is_refused() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let identity = invite(&cluster.dir(), "client", &cluster.scratch()?.join("client.pem"))?;
    let said = status_with(&cluster, &identity)?;
    assert!(!said.succeeded(), "a client's identity is no operator's: {said}");
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a temporary path is text")
}

fn millrace(arguments: &[&str]) -> Result<Said> {
    finish(Command::new(binaries().join("millrace")).args(arguments), REFUSAL)
}

fn invite(dir: &Path, role: &str, out: &Path) -> Result<String> {
    let arguments = ["cluster", "invite", "--dir", text(dir)?, "--role", role, "--out", text(out)?];
    millrace(&arguments)?.ok()?;
    Ok(text(out)?.to_owned())
}

/// `millrace status` on the cluster, with another identity than its operator's.
fn status_with(cluster: &Cluster, identity: &str) -> Result<Said> {
    let settings = fs::read_to_string(cluster.dir().join("admin.toml"))?;
    let mut table: toml::Table = settings.parse()?;
    let section = table["cluster"].as_table_mut().context("a section")?;
    section.insert("identity".to_owned(), identity.into());
    let file = cluster.scratch()?.join("other-admin.toml");
    fs::write(&file, toml::to_string(&table)?)?;
    millrace(&["status", "--config", text(&file)?])
}

fn assert_refusal_is_logged(cluster: &Cluster) -> Result<()> {
    millrace_tests::program::wait_for("a line about the refused peer", || {
        let log = cluster.log("metadata").to_lowercase();
        log.lines()
            .any(|line| line.contains("refused") || line.contains("certificate"))
            .then_some(())
    })
}
