//! Peers that do not belong: garbage, floods, no certificate, another cluster's certificate, a
//! wrong role.

use std::{fs, net::UdpSocket, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{Said, binaries, finish, wait_for},
    stranger::Stranger,
};

/// A refused peer must hear so, and not wait for a timeout of its own.
const REFUSAL: Duration = Duration::from_secs(60);

/// Handshakes that are begun and never ended, at each server: many times what it keeps at once.
const HALF_OPEN: usize = 3_000;

/// What a daemon may take for itself, whoever knocks.
const RESIDENT_BYTES_MAX: u64 = 512 << 20;

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
fn a_flood_of_half_open_handshakes_harms_nothing() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    fs::write(&path, "before")?;
    let before = cluster.daemons();
    let ours = fs::read_to_string(cluster.invite("client", &[])?)?;
    let stranger = Stranger::new(&cluster.id()?, &ours, None)?;
    for (name, role) in [("metadata", "metadata"), ("target-0", "target")] {
        let flights = stranger.first_flights(role, HALF_OPEN)?;
        let address = cluster.address(name)?;
        for part in flights.chunks(100) {
            // Each part comes from a port of its own, whose answers nobody reads.
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.connect(&address)?;
            for datagram in part {
                // A full socket buffer drops a datagram, which is as good.
                drop(socket.send(datagram));
            }
        }
    }
    // New connections and old ones are served while the handshakes wait for their other half.
    wait_for("a healthy cluster", || {
        (cluster.json(&["status"]).ok()?["health"] == "healthy").then_some(())
    })?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    fs::write(&path, "after")?;
    assert_eq!(fs::read(second.join("file"))?, b"after");
    for daemon in before {
        ensure!(daemon.is_alive(), "{} has died", daemon.name);
        let resident = daemon.resident_bytes_max()?;
        ensure!(resident < RESIDENT_BYTES_MAX, "{} took {resident} bytes", daemon.name);
        let lines = cluster.log(&daemon.name).lines().count();
        ensure!(lines < HALF_OPEN / 4, "{} has logged {lines} lines", daemon.name);
    }
    Ok(())
}

#[test]
fn who_does_not_belong_is_refused_by_every_server_and_its_log_says_why() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let id = cluster.id()?;
    let ours = fs::read_to_string(cluster.invite("client", &[])?)?;
    let elsewhere = tempfile::tempdir()?;
    let dir = elsewhere.path().join("authority");
    millrace(&["cluster", "init", "--dir", text(&dir)?])?.ok()?;
    let theirs = fs::read_to_string(invite(&dir, "client", &elsewhere.path().join("x.pem"))?)?;
    let admin = fs::read_to_string(cluster.invite("admin", &[])?)?;
    let server = fs::read_to_string(cluster.invite("metadata", &[])?)?;
    for (name, role, wrong_role, of_role) in
        [("metadata", "metadata", &server, "metadata"), ("target-0", "target", &admin, "admin")]
    {
        let address = cluster.address(name)?;
        for (shown, reason) in [
            (None, "the peer shows no certificate".to_owned()),
            (Some(&theirs), "the peer's certificate is of another cluster".to_owned()),
            (Some(wrong_role), format!("peers of role {of_role} are not served here")),
        ] {
            let stranger = Stranger::new(&id, &ours, shown.map(String::as_str))?;
            stranger.knock(role, &address).with_context(|| format!("{name}: {reason}"))?;
            let remote = format!("127.0.0.1:{}", stranger.port()?);
            cluster.wait_for_log(name, &["WARN", "peer refused", &reason, &remote])?;
        }
    }
    fs::write(cluster.mount().join("file"), "served")?;
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

#[test]
fn a_command_that_ends_takes_leave_of_its_server() -> Result<()> {
    let logs = ("RUST_LOG".to_owned(), "info,millrace_transport=debug".to_owned());
    let cluster = Cluster::start(Wish { environment: vec![logs], ..Wish::default() })?;
    cluster.json(&["status"])?;
    let log = cluster.log("metadata");
    let joined = log.lines().rfind(|line| line.contains("connected") && line.contains("admin"));
    let joined = joined.context("an operator's connection")?;
    let id = joined.split_whitespace().find(|word| word.starts_with("id=")).context("its id")?;
    // Otherwise it would be "timed out", the idle timeout later.
    let words = ["peer disconnected", &format!("{id} "), "closed by peer"];
    cluster.wait_for_log("metadata", &words)
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
    wait_for("a line about the refused peer", || {
        let log = cluster.log("metadata").to_lowercase();
        log.lines()
            .any(|line| line.contains("refused") || line.contains("certificate"))
            .then_some(())
    })
}
