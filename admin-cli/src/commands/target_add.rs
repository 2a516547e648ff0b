//! `millrace target add DIRECTORY`: names a further target in the settings of this host's daemon.
//!
//! It asks no server: the daemon makes the target when it is started again, and tells the cluster.
//! The settings are replaced as a whole, after the daemon's own program has found nothing wrong
//! with them.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, fchown},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use tempfile::NamedTempFile;
use tokio::process::Command;

use self::{
    entry::{Entry, Settings},
    place::Place,
};
use crate::{
    arguments::TargetAddArguments,
    context::Context,
    exit::{Exit, Misuse},
    programs, watch,
    whole_file::{self, Present},
};

mod entry;
mod head;
mod place;

/// Where the settings of the daemon lie when nobody says anything.
const DEFAULT_FILE: &str = "/etc/millrace/storage-target.toml";

/// What takes the new target in. The daemon reads its settings when it starts, and only then.
const RESTART: &str = "systemctl restart millrace-target";

/// What the daemon's unit adds to its environment, where settings may stand too.
const ENVIRONMENT: &str = "/etc/millrace/target.env";

/// What was done, and what is left to do.
#[derive(Serialize, Debug)]
struct Report {
    directory: PathBuf,
    config: PathBuf,
    /// Not where it was named before.
    added: bool,
    holds_target: bool,
    free_bytes: u64,
    warnings: Vec<String>,
    next: Vec<&'static str>,
}

/// Looks at the directory, and writes its entry.
pub(crate) async fn run(context: &Context, arguments: TargetAddArguments) -> anyhow::Result<Exit> {
    let config = config_of(context)?;
    let directory = std::path::absolute(&arguments.directory)
        .with_context(|| format!("cannot use {}", arguments.directory.display()))?;
    let named = directory.to_str();
    let named = named.with_context(|| format!("{} is no UTF-8 text", directory.display()))?;
    let text = fs::read_to_string(&config)
        .with_context(|| format!("cannot read the settings {}", config.display()))?;
    let mut settings =
        Settings::parse(&text).with_context(|| format!("cannot use {}", config.display()))?;
    let others = settings.directories();
    let place = Place::look(&directory)?;
    let is_named = others.iter().any(|other| place.is_at(other));
    let mut warnings = Vec::new();
    if !is_named {
        let TargetAddArguments { capacity, id, .. } = arguments;
        place.check(capacity, id)?;
        warnings = place.warnings(&others, id);
        settings.add(&Entry { directory: named, capacity, id })?;
        warnings.extend(replace(&config, &text, &settings.to_string()).await?);
    }
    for warning in &warnings {
        watch::say(&format!("warning: {warning}"));
    }
    let report = Report {
        added: !is_named,
        holds_target: place.holds_target,
        free_bytes: place.free.0,
        warnings,
        next: vec![RESTART, "millrace target list"],
        directory,
        config,
    };
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

/// The settings of the daemon: `--config`, or where they lie by default.
fn config_of(context: &Context) -> anyhow::Result<PathBuf> {
    let globals = &context.globals;
    match (&globals.config, &globals.dir) {
        (Some(config), _) => Ok(config.clone()),
        (None, Some(dir)) => {
            let words = format!(
                "each target of a dev cluster has a daemon of its own, whose settings `dev up` \
                 writes: `millrace dev up --dir {} --targets N` adds targets; elsewhere name the \
                 daemon's settings with --config FILE",
                dir.display()
            );
            Err(Misuse(words).into())
        }
        (None, None) => Ok(PathBuf::from(DEFAULT_FILE)),
    }
}

fn words(report: &Report) -> String {
    let Report { directory, config, added, holds_target, .. } = report;
    let (directory, config) = (directory.display(), config.display());
    let done = match added {
        true => format!("{directory} is a target in {config} now"),
        false => format!("{config} names {directory} already; nothing was changed"),
    };
    let joins = match holds_target {
        true => "The target that it holds joins with the id that it has",
        false => "It becomes a new target",
    };
    format!(
        "{done}.\n{joins} when the daemon is started again; readers and writers of its other \
         targets wait for seconds:\n  {RESTART}\n  millrace target list"
    )
}

/// Replaces the settings, if they are still those that were read, and the daemon takes the new
/// ones. A warning where nobody could ask it.
async fn replace(config: &Path, before: &str, after: &str) -> anyhow::Result<Option<String>> {
    whole_file::write(config, Present::Replaced, async |partial: &mut NamedTempFile| {
        partial.write_all(after.as_bytes()).context("cannot write the new settings")?;
        partial.flush().context("cannot write the new settings")?;
        let warning = check(partial.path(), config).await?;
        keep_attributes(partial, config)
            .with_context(|| format!("cannot keep the owner and mode of {}", config.display()))?;
        let now = fs::read_to_string(config).context("cannot read the settings again")?;
        ensure!(now == before, "{} has changed meanwhile; try again", config.display());
        Ok(warning)
    })
    .await
}

/// The new file belongs to whom the old one does, and is for whom that was.
fn keep_attributes(file: &NamedTempFile, config: &Path) -> anyhow::Result<()> {
    let (old, new) = (fs::metadata(config)?, file.as_file().metadata()?);
    if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
        fchown(file.as_file(), Some(old.uid()), Some(old.gid()))?;
    }
    // After that, which may take bits away.
    Ok(file.as_file().set_permissions(old.permissions())?)
}

/// Has the daemon's program look at the settings, as it does at a start.
async fn check(file: &Path, config: &Path) -> anyhow::Result<Option<String>> {
    let Ok(program) = programs::find(programs::TARGET) else {
        let warning = format!(
            "{} is not installed here: whether it takes the settings is not known",
            programs::TARGET
        );
        return Ok(Some(warning));
    };
    let mut command = Command::new(&program);
    command.arg("--config").arg(file).arg("--check-config").stdin(Stdio::null());
    let said = command.kill_on_drop(true).output().await;
    let said = said.with_context(|| format!("cannot run {}", program.display()))?;
    if said.status.success() {
        return Ok(None);
    }
    let words = String::from_utf8_lossy(&said.stderr);
    // It was shown the new settings under another name.
    let words = words.replace(&file.display().to_string(), &config.display().to_string());
    bail!(refusal(words.trim(), Path::new(ENVIRONMENT).exists()))
}

/// What is told of settings that the daemon's program does not take. It was not given what the
/// daemon is.
fn refusal(words: &str, has_environment: bool) -> String {
    let words = format!("the daemon would refuse the settings, and nothing was changed: {words}");
    match has_environment {
        true => format!(
            "{words}\nIf the daemon has some of its settings from {ENVIRONMENT}, give them to this \
             command too: `set -a; . {ENVIRONMENT}; set +a` before it"
        ),
        false => words,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[tokio::test]
    async fn settings_that_somebody_else_has_changed_stay_and_the_mode_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("target.toml");
        fs::write(&config, "old").unwrap();
        fs::set_permissions(&config, Permissions::from_mode(0o640)).unwrap();
        let partial = NamedTempFile::new_in(directory.path()).unwrap();
        keep_attributes(&partial, &config).unwrap();
        let kept = partial.as_file().metadata().unwrap();
        assert_eq!(kept.permissions().mode() & 0o7777, 0o640);
        drop(partial);
        // Whatever the daemon would say of it, if it is there.
        let refused = replace(&config, "other", "not = [settings").await;
        assert!(refused.is_err());
        assert_eq!(fs::read_to_string(&config).unwrap(), "old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn settings_from_the_environment_of_the_daemon_are_thought_of() {
        let plain = refusal("no cluster", false);
        assert!(plain.ends_with("no cluster"), "{plain}");
        let with = refusal("no cluster", true);
        assert!(with.starts_with(&plain) && with.contains(ENVIRONMENT), "{with}");
    }

    #[test]
    fn what_is_left_to_do_is_told() {
        let report = |added, holds_target| Report {
            directory: "/d".into(),
            config: "/c".into(),
            added,
            holds_target,
            free_bytes: 0,
            warnings: Vec::new(),
            next: Vec::new(),
        };
        let told = words(&report(true, false));
        assert!(told.contains("becomes a new target") && told.contains(RESTART), "{told}");
        assert!(words(&report(false, false)).contains("already"));
        assert!(words(&report(true, true)).contains("id that it has"));
    }
}
