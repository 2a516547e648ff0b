//! Programs that keep, edit and build sources.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{LONG_PATIENCE, finish, repository, run},
};

#[test]
fn git_clones_this_repository_commits_collects_its_garbage_and_finds_no_fault() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (source, clone) = (source_repository(&cluster)?, cluster.mount().join("clone"));
    // As over a network: objects are packed and unpacked, and no file is linked or copied.
    git(&cluster, "git clone -q --no-local \"file://$1\" \"$2\"", &[&source, &clone])?;
    // Without its index git reads every file again, to compare it with what was committed.
    let work = "cd \"$1\"
        git fsck --strict
        rm .git/index
        git reset -q
        git status --porcelain
        echo more >>new
        git add new
        git commit -q -m 'One more'
        git checkout -q HEAD~1
        git checkout -q -
        git gc -q
        git fsck --strict
        git status --porcelain";
    assert_eq!(git(&cluster, work, &[&clone])?, "", "what is wrong, or has changed");
    let head = |of: &str, at: &Path| git(&cluster, &format!("git -C \"$1\" rev-parse {of}"), &[at]);
    assert_eq!(head("HEAD~1", &clone)?, head("HEAD", &source)?);
    Ok(())
}

/// The repository that this test is of, or a small one where the sources are no checkout.
#[expect(clippy::print_stderr, reason = "who reads the test's output learns what was cloned")]
fn source_repository(cluster: &Cluster) -> Result<PathBuf> {
    let own = repository();
    if own.join(".git").exists() {
        return Ok(own);
    }
    eprintln!("NO .git IN {}: A SMALL REPOSITORY IS CLONED INSTEAD", own.display());
    let source = cluster.scratch()?.join("source");
    let make = "git init -q \"$1\"
        cd \"$1\"
        cp -r \"$2/common\" \"$2/scripts\" .
        git add .
        git commit -q -m 'The first'";
    git(cluster, make, &[&source, &own])?;
    Ok(source)
}

/// Runs a script with `$1`, `$2` and so on, in which git knows nobody's settings: a checkout that
/// belongs to another user is read as well.
fn git(cluster: &Cluster, script: &str, arguments: &[&Path]) -> Result<String> {
    let settings = cluster.scratch()?.join("gitconfig");
    let all = "[user]\nname = t\nemail = t@localhost\n[safe]\ndirectory = *\n[gc]\nauto = 0\n";
    fs::write(&settings, all)?;
    let mut shell = Command::new("sh");
    shell.args(["-euc", script, "sh"]).args(arguments);
    shell.env("GIT_CONFIG_GLOBAL", &settings).env("GIT_CONFIG_NOSYSTEM", "1");
    finish(&mut shell, LONG_PATIENCE)?.ok()
}

#[test]
fn vim_edits_a_file_in_place() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("text");
    fs::write(&path, "first\nsecond\n")?;
    let found = run("sh", &[&"-c", &"command -v vim || command -v vim.tiny"])?.ok()?;
    let arguments = "%s/second/changed/ | wq";
    run(found.trim(), &[&"-u", &"NONE", &"-es", &"-c", &arguments, &path])?;
    assert_eq!(fs::read_to_string(&path)?, "first\nchanged\n");
    Ok(())
}

/// Twenty sources that include one header, a library, and a program that says their sum.
fn make_project(root: &Path) -> Result<()> {
    fs::create_dir_all(root)?;
    fs::write(root.join("common.h"), "#define STEP 1\n")?;
    for number in 0..20 {
        let include = if number % 2 == 0 { "#include \"common.h\"\n" } else { "#define STEP 1\n" };
        let body = format!("{include}int part_{number}(void) {{ return {number} * STEP; }}\n");
        fs::write(root.join(format!("part_{number}.c")), body)?;
    }
    let names = |prefix: &str, suffix: &str, between: &str| {
        (0..20).map(|n| format!("{prefix}{n}{suffix}")).collect::<Vec<_>>().join(between)
    };
    let main = format!(
        "#include <stdio.h>\n{}\nint main(void) {{ printf(\"%d\\n\", {}); return 0; }}\n",
        names("int part_", "(void);", "\n"),
        names("part_", "()", " + "),
    );
    fs::write(root.join("main.c"), main)?;
    let makefile = format!(
        "CFLAGS = -MMD\nsum: main.o libparts.a\n\tcc -o $@ $^\n\
         libparts.a: {}\n\tar rcs $@ $^\n-include *.d\n",
        names("part_", ".o", " ")
    );
    Ok(fs::write(root.join("Makefile"), makefile)?)
}

#[test]
fn make_builds_with_several_jobs_and_builds_again_only_what_changed() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let project = cluster.mount().join("project");
    make_project(&project)?;
    let make = || run("make", &[&"-j4", &"-C", &project])?.ok();
    assert_eq!(make()?.matches("-c -o").count(), 21);
    assert_eq!(run(&project.join("sum").to_string_lossy(), &[])?.ok()?, "190\n");
    assert_eq!(make()?.matches("-c -o").count(), 0, "nothing has changed");
    fs::write(project.join("common.h"), "#define STEP 2\n")?;
    assert_eq!(make()?.matches("-c -o").count(), 10, "half of them include it");
    assert_eq!(run(&project.join("sum").to_string_lossy(), &[])?.ok()?, "280\n");
    Ok(())
}

#[test]
fn cargo_builds_tests_and_builds_again_only_what_changed() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let root = cluster.mount().join("workspace");
    for package in ["library", "program"] {
        fs::create_dir_all(root.join(package).join("src"))?;
    }
    let manifest = "[workspace]\nresolver = '3'\nmembers = ['library', 'program']\n";
    fs::write(root.join("Cargo.toml"), manifest)?;
    let library = "[package]\nname = 'library'\nedition = '2024'\n";
    fs::write(root.join("library/Cargo.toml"), library)?;
    let program = "[package]\nname = 'program'\nedition = '2024'\n\
                   [dependencies]\nlibrary = { path = '../library' }\n";
    fs::write(root.join("program/Cargo.toml"), program)?;
    let answer = |number: u32| format!("pub fn answer() -> u32 {{ {number} }}\n");
    fs::write(root.join("library/src/lib.rs"), answer(41))?;
    let main = "fn main() { println!(\"{}\", library::answer()); }\n\
                #[test] fn it_answers() { assert!(library::answer() > 40); }\n";
    fs::write(root.join("program/src/main.rs"), main)?;

    assert_eq!(cargo(&root, "run")?.0, "41\n");
    assert!(cargo(&root, "test")?.0.contains("1 passed"));
    assert!(!cargo(&root, "run")?.1.contains("Compiling"), "nothing has changed");
    fs::write(root.join("library/src/lib.rs"), answer(42))?;
    assert_eq!(cargo(&root, "run")?.0, "42\n");
    Ok(())
}

/// What a command of cargo printed for programs, and for people.
fn cargo(root: &Path, command: &str) -> Result<(String, String)> {
    let cargo = env::var_os("CARGO").context("the runner of tests names its cargo")?;
    let mut run = Command::new(cargo);
    // Neither settings nor the target directory of the build that this test belongs to.
    run.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").current_dir(root);
    let said = finish(run.args([command, "--offline"]), LONG_PATIENCE)?;
    let people = said.stderr.clone();
    Ok((said.ok()?, people))
}
