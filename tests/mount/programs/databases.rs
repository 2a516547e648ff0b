//! Databases: they lock, map, sync, and notice every byte that is not theirs.

use std::{
    ffi::OsStr,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    chance,
    cluster::{Cluster, Wish},
    program::{LONG_PATIENCE, finish, run},
};

#[test]
fn sqlite_keeps_a_database_and_its_locks() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let database = cluster.mount().join("data.db");
    let fill = "create table t(id integer primary key, body text);\
                with recursive n(i) as (select 1 union all select i+1 from n where i < 5000)\
                insert into t select i, printf('row %d', i) from n;\
                update t set body = body || '!' where id % 7 = 0;";
    run("sqlite3", &[&database, &fill])?.ok()?;
    let check = "pragma integrity_check; select count(*), sum(length(body)) from t;";
    let said = run("sqlite3", &[&database, &check])?.ok()?;
    assert!(said.starts_with("ok\n5000|"), "{said}");
    Ok(())
}

#[test]
fn two_processes_write_one_sqlite_database_in_both_journal_modes() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    for journal in ["wal", "delete"] {
        let database = cluster.mount().join(format!("{journal}.db"));
        let make = format!("pragma journal_mode={journal}; create table t(who, number);");
        let said = run("sqlite3", &[&database, &make])?.ok()?;
        assert_eq!(said.trim(), journal);
        let writers: Vec<_> = (0..2)
            .map(|who| {
                let database = database.clone();
                let insert = format!("insert into t select {who}, count(*) from t;");
                let all = insert.repeat(100);
                thread::spawn(move || {
                    let mut writer = Command::new("sqlite3");
                    writer.args(["-cmd", ".timeout 250000"]).arg(&database).arg(&all);
                    finish(&mut writer, LONG_PATIENCE)?.ok()
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("a writer does not panic")?;
        }
        // Each saw all before it: the numbers are those from 0 to 199, once each.
        let check = "pragma integrity_check; select count(distinct number), max(number) from t;";
        assert_eq!(run("sqlite3", &[&database, &check])?.ok()?, "ok\n200|199\n", "{journal}");
    }
    Ok(())
}

/// Transactions of each of the four clients. `MILLRACE_TEST_SECONDS` has them work so long instead.
const TRANSACTIONS: u64 = 50;

#[test]
fn postgres_keeps_its_books_while_servers_are_killed() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let server = Postgres::prepare(&cluster.mount().join("postgres"))?;
    server.start()?;
    server.run("pgbench", &["-i", "-q", "-s", "2", "postgres"])?;
    let seconds = chance::seconds()?;
    let (unit, count) = seconds.map_or(("-t", TRANSACTIONS), |seconds| ("-T", seconds));
    let (clients, count) = (["-n", "-c", "4", "-j", "2"], count.to_string());
    let load = server.command("pgbench", &[&clients[..], &[unit, &count, "postgres"]].concat());
    let patience = LONG_PATIENCE + Duration::from_secs(seconds.unwrap_or(0));
    let load = thread::spawn(move || {
        let mut load = load;
        finish(&mut load, patience)
    });
    for daemon in ["metadata", "target-0", "metadata", "target-1"] {
        cluster.crash(daemon)?;
    }
    let said = load.join().expect("the load does not panic")?.ok()?;
    let all = processed(&said).with_context(|| said.clone())?;
    ensure!(seconds.is_some() || all == TRANSACTIONS * 4, "{said}");
    ensure!(all > 0, "{said}");
    server.check(all)?;
    // As after a crash of the host: what was committed comes back from the log.
    server.stop("immediate")?;
    server.start()?;
    server.check(all)
}

/// How many transactions `pgbench` says that it has done.
fn processed(said: &str) -> Option<u64> {
    let (_, count) = said.split_once("actually processed: ")?;
    count.split(|byte: char| !byte.is_ascii_digit()).next()?.parse().ok()
}

/// A database server whose files lie on the mount; its end stops it.
struct Postgres {
    programs: PathBuf,
    data: PathBuf,
    /// For its socket, whose path must be short; and for its log.
    sockets: tempfile::TempDir,
}

impl Postgres {
    fn prepare(data: &Path) -> Result<Self> {
        let found = fs::read_dir("/usr/lib/postgresql").context("PostgreSQL is installed")?;
        let mut versions: Vec<_> = found.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
        versions.sort();
        let programs = versions.pop().context("a version of PostgreSQL")?.join("bin");
        let sockets = tempfile::tempdir()?;
        fs::create_dir(data)?;
        let id = |which: &str| -> Result<u32> {
            Ok(run("id", &[&which, &"postgres"])?.ok()?.trim().parse()?)
        };
        let (user, group) = (id("--user")?, id("--group")?);
        for folder in [data, sockets.path()] {
            chown(folder, Some(user), Some(group))?;
            fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        }
        let server = Self { programs, data: data.to_owned(), sockets };
        let data = server.data.to_string_lossy().into_owned();
        server.run("initdb", &["--auth=trust", "--no-instructions", "--pgdata", &data])?;
        Ok(server)
    }

    fn start(&self) -> Result<()> {
        let options =
            format!("-c listen_addresses='' -c unix_socket_directories='{}'", self.socket());
        let log = self.sockets.path().join("log");
        self.control(&[
            "start".as_ref(),
            "--wait".as_ref(),
            "--options".as_ref(),
            options.as_ref(),
            "--log".as_ref(),
            log.as_ref(),
        ])
    }

    fn stop(&self, mode: &str) -> Result<()> {
        self.control(&["stop".as_ref(), "--mode".as_ref(), mode.as_ref()])
    }

    fn control(&self, arguments: &[&OsStr]) -> Result<()> {
        let mut command = self.command("pg_ctl", &[]);
        command.args(arguments).args(["--timeout", "250"]).arg("--pgdata").arg(&self.data);
        finish(&mut command, LONG_PATIENCE)?.ok().map(drop)
    }

    /// Each transaction moved one amount in four tables, so all sums are the same.
    fn check(&self, transactions: u64) -> Result<()> {
        let sums = "select (select sum(abalance) from pgbench_accounts) = h, \
                    (select sum(tbalance) from pgbench_tellers) = h, \
                    (select sum(bbalance) from pgbench_branches) = h, count \
                    from (select sum(delta) as h, count(*) from pgbench_history) as history";
        let said = self.run("psql", &["--no-align", "--tuples-only", "-c", sums, "postgres"])?;
        ensure!(said == format!("t|t|t|{transactions}\n"), "sums of the tables: {said}");
        self.run("pg_amcheck", &["--install-missing", "--heapallindexed", "postgres"]).map(drop)
    }

    fn socket(&self) -> String {
        self.sockets.path().to_string_lossy().into_owned()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        finish(&mut self.command(program, arguments), LONG_PATIENCE)?.ok()
    }

    /// A program of PostgreSQL, as its own user: it refuses to run as root.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(self.programs.join(program)).args(arguments);
        command.env("PGHOST", self.socket()).current_dir("/");
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Nothing runs any more if the test stopped it before; then this says so, to nobody.
        drop(self.stop("immediate"));
    }
}
