//! Bad settings and a full disk are refused with an error that says what to do.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{binaries, finish},
};
use rustix::io::Errno;

/// No daemon needs longer to refuse its settings.
const REFUSAL: Duration = Duration::from_secs(20);

#[test]
fn an_unknown_setting_is_named_with_its_file() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    for (daemon, program) in [
        ("metadata", "millrace-metadata"),
        ("target-0", "millrace-target"),
        ("mount-0", "millrace-fuse"),
    ] {
        let folder = cluster.dir().join(daemon);
        let settings = fs::read_dir(&folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "toml"))
            .with_context(|| format!("{daemon} has no settings file"))?;
        let bad = folder.join("bad-settings.toml");
        fs::write(&bad, format!("no_such_setting = 1\n{}", fs::read_to_string(settings)?))?;
        let mut command = Command::new(binaries().join(program));
        command.arg("--config").arg(&bad);
        if daemon.starts_with("mount") {
            command.arg("--mountpoint").arg(cluster.mount_named("nowhere"));
        }
        let said = finish(&mut command, REFUSAL)?;
        assert!(!said.succeeded(), "{program}: {said}");
        let whole = format!("{}{}", said.stdout, said.stderr);
        assert!(whole.contains("no_such_setting"), "{program}: {said}");
        assert!(whole.contains("bad-settings.toml"), "{program}: {said}");
    }
    Ok(())
}

#[test]
fn what_the_start_refuses_is_refused_by_the_check_too_and_not_tried_again() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("settings.toml");
    let metadata = "identity = '/no/i.pem'\ndata = '/no/data'\n";
    let cluster = "[cluster]\nservers = ['meta-1:7440']\nidentity = '/no/i.pem'\n";
    let mount = format!("{cluster}[mount]\nmountpoint = '/no/mount'\n");
    for (program, settings, more, word) in [
        ("metadata", format!("{metadata}[command_log]\nsegment = '1KiB'"), "", "segment"),
        ("metadata", format!("{metadata}[sessions]\nlease = '1s'"), "", "sessions.lease"),
        ("metadata", format!("{metadata}[fsck]\ncontents_per_second = 0"), "", "at least 1"),
        ("metadata", format!("{metadata}[log]\nlevel = 'millrace=chatty'"), "", "log.level"),
        ("target", cluster.to_owned(), "", "no target is configured"),
        ("target", format!("data = '/no/data'\nadvertise = ['[::]:7441']\n{cluster}"), "", "[::]"),
        ("fuse", String::new(), "", "no cluster"),
        ("fuse", cluster.to_owned(), "", "no mount point"),
        ("fuse", mount.clone(), "--options=memory=1M", "16 MiB is the least"),
        ("fuse", format!("{mount}[cache]\nmemory = '1MiB'"), "", "16 MiB is the least"),
    ] {
        fs::write(&file, &settings)?;
        for check in ["--check-config", ""] {
            let mut command = Command::new(binaries().join(format!("millrace-{program}")));
            command.arg("--config").arg(&file).env_remove("RUST_LOG");
            command.args([more, check].iter().filter(|argument| !argument.is_empty()));
            let said = finish(&mut command, REFUSAL)?;
            let is_refused = said.code == Some(2) && said.stderr.contains(word);
            ensure!(is_refused && said.stdout.is_empty(), "{program} {check} {settings}: {said}");
        }
    }
    // What the command line says counts, also for what is printed.
    fs::write(&file, &mount)?;
    let mut command = Command::new(binaries().join("millrace-fuse"));
    command.arg("--config").arg(&file).args(["--check-config", "-o", "ro,memory=64MiB"]);
    let shown = finish(&mut command, REFUSAL)?.ok()?;
    ensure!(shown.contains("read_only = true") && shown.contains("67108864"), "{shown}");
    Ok(())
}

#[test]
fn a_variable_for_no_program_is_named() -> Result<()> {
    for (variable, code) in [("MILLRACE_METRIC__ADDRESS", 2), ("MILLRACE_SCRUB__RATE", 0)] {
        let mut command = Command::new(binaries().join("millrace-metadata"));
        command.envs([("MILLRACE__IDENTITY", "/no/i.pem"), ("MILLRACE__DATA", "/no/data")]);
        command.arg("--check-config").env(variable, "1");
        let said = finish(&mut command, REFUSAL)?;
        ensure!(said.code == Some(code), "{said}");
        ensure!(said.stderr.contains(variable) == (code != 0), "{said}");
    }
    Ok(())
}

#[test]
fn a_missing_settings_file_is_named() -> Result<()> {
    for program in ["millrace-metadata", "millrace-target", "millrace-fuse"] {
        let mut command = Command::new(binaries().join(program));
        command.args(["--config", "/no/such/file.toml"]);
        if program == "millrace-fuse" {
            command.args(["--mountpoint", "/no/such/mount"]);
        }
        let said = finish(&mut command, REFUSAL)?;
        assert!(!said.succeeded(), "{program}: {said}");
        let whole = format!("{}{}", said.stdout, said.stderr);
        assert!(whole.contains("/no/such/"), "{program}: {said}");
    }
    Ok(())
}

#[test]
fn a_full_target_gives_enospc_and_room_comes_back_with_removal() -> Result<()> {
    let wish = Wish { targets: 1, capacity: Some("64MiB".to_owned()), ..Wish::default() };
    let cluster = Cluster::start(wish)?;
    let path = cluster.mount().join("too-large");
    let mut file = OpenOptions::new().create_new(true).write(true).open(&path)?;
    let piece = vec![5; 1 << 20];
    let error = (0..256)
        .find_map(|_| file.write_all(&piece).and_then(|()| file.sync_data()).err())
        .context("256 MiB went onto a target of 64 MiB")?;
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "{error}");
    drop(file);
    fs::remove_file(&path)?;
    millrace_tests::program::wait_for("room", || {
        let small = cluster.mount().join("small");
        let written = fs::File::create(small).and_then(|mut file| {
            file.write_all(&piece)?;
            file.sync_all()
        });
        written.ok()
    })?;
    Ok(())
}
