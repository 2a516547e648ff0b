use std::path::Path;

use clap::CommandFactory as _;
use millrace_protocol::admin::FileState;
use millrace_types::MIB;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_argument_definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn global_options_may_stand_before_and_after_the_subcommand() {
    for line in [
        "millrace --dir D --json job list",
        "millrace job --dir D --json list",
        "millrace job list --json --dir D",
        "millrace --json job list --dir D",
    ] {
        let cli = parse(line).unwrap();
        assert_eq!(cli.globals.dir, Some(PathBuf::from("D")), "{line}");
        assert!(cli.globals.json, "{line}");
    }
    let cli = parse("millrace status --config F").unwrap();
    assert_eq!(cli.globals.config, Some(PathBuf::from("F")));
    let cli = parse("millrace state mr:/x --json").unwrap();
    assert!(cli.globals.json);
}

#[test]
fn every_documented_form_parses() {
    for line in [
        "millrace cluster init --dir D",
        "millrace cluster invite --dir D --role client --subtree /a --squash-root --out F",
        "millrace cluster invite --dir D --role metadata --out F",
        "millrace dev up --dir D --targets 3 --mount M",
        "millrace target list",
        "millrace target add /srv/1 --config F --capacity 1GiB --id 0011223344556677",
        "millrace target show 0011223344556677",
        "millrace target scrub --all",
        "millrace target scrub 0011223344556677 8899aabbccddeeff --start --wait",
        "millrace target scrub 0011223344556677 --rate 0",
        "millrace target drain-check 0011223344556677",
        "millrace dev up --dir D",
        "millrace dev down --dir D",
        "millrace dev status --dir D",
        "millrace status --json",
        "millrace mount -o ro,identity=F /mnt",
        "millrace mount /mnt",
        "millrace umount /mnt",
        "millrace stripe set --chunk-size 1MiB --count -1 --pool fast /mnt/d",
        "millrace stripe set --count=-1 mr:/d",
        "millrace stripe set --inline 16KiB mr:/d",
        "millrace stripe set --inline 0 mr:/d",
        "millrace stripe show mr:/d/f --json",
        "millrace link add s3://b/p /mnt/p --endpoint http://h:1 --region r --credentials c",
        "millrace link add s3://b/p mr:/p --mode import-export",
        "millrace link add s3://b/p mr:/p --refresh 300 --attributes objects",
        "millrace link set mr:/p --refresh 0",
        "millrace link set mr:/p --auto-export 0",
        "millrace link add s3://b/p mr:/p --mode import-export --auto-export 86400",
        "millrace link set mr:/p --auto-export off",
        "millrace link set mr:/p --fetch asked",
        "millrace link add s3://b/p mr:/p --fetch file",
        "millrace link list --json",
        "millrace link remove mr:/p --discard",
        "millrace hydrate mr:/p --wait",
        "millrace import mr:/p --wait",
        "millrace import mr:/p --include a/** --include b/* --exclude old --dry-run --report",
        "millrace export --wait mr:/p",
        "millrace release mr:/p",
        "millrace state mr:/p --json",
        "millrace pin mr:/p --json",
        "millrace pin",
        "millrace unpin /mnt/p",
        "millrace resolve mr:/p/f --keep local --json",
        "millrace resolve --keep bucket /mnt/p/f",
        "millrace conflicts resolve --keep bucket /mnt/p mr:/q --recursive --dry-run",
        "millrace resolve --keep local --files-from - -0",
        "millrace hydrate mr:/p --include *.jpg --include a/** --exclude b --dry-run",
        "millrace release mr:/p --older 30d --larger 1GiB --wait",
        "millrace release mr:/p --unused 7d",
        "millrace export mr:/p --state dirty",
        "millrace hydrate mr:/p --state released,partial --state lost --dry-run",
        "millrace export mr:/p --newer 12h --smaller 5M",
        "millrace job retry 7 --wait",
        "millrace job list",
        "millrace job show 7 --json",
        "millrace job show 7 --directories --at-once",
        "millrace job cancel j7",
    ] {
        if let Err(error) = parse(line) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn every_command_that_starts_a_job_teaches_its_own_form() {
    for verb in ["import", "hydrate", "export", "release"] {
        let mut command = Cli::command();
        let command = command.find_subcommand_mut(verb).expect(verb);
        let help = command.render_long_help().to_string();
        let (_, examples) = help.split_once("Examples:\n").expect(verb);
        assert!(examples.starts_with(&format!("  millrace {verb} ")), "{help}");
        for line in examples.lines().filter_map(|line| line.split("  ").nth(1)) {
            for line in line.split(" && ") {
                assert!(parse(line).is_ok(), "{verb}: {line}");
            }
        }
        assert!(help.contains("it goes on when this command is interrupted"), "{help}");
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
    }
}

#[test]
fn help_texts_leave_nothing_out() {
    for (line, words) in [
        ("", &["130", "resolve, pin, unpin, import"][..]),
        ("state", &["released", "partial", "hydrated", "dirty", "exported", "conflict", "lost"]),
        ("export", &["s3://", "gs://", "az://", "file:///"]),
        ("link add", &["anonymous"]),
        ("job report", &["done", "failed", "would be done", "left out"]),
        ("mount", &["MILLRACE_CONFIG", "diratime"]),
        ("fsck trust", &["fsck start --report-only --wait\n"]),
    ] {
        let mut command = Cli::command();
        let named = line.split_whitespace();
        let command = named.fold(&mut command, |command, name| {
            command.find_subcommand_mut(name).expect("it is there")
        });
        let help = command.render_long_help().to_string();
        for word in words {
            assert!(help.contains(word), "{line}: {word}: {help}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    for (line, remedy) in [
        ("millrace stripe set mr:/d", "--chunk-size"),
        ("millrace stripe set --count 0 mr:/d", "-1 for all"),
        ("millrace stripe set --inline 17KiB mr:/d", "up to 16KiB"),
        ("millrace stripe set --chunk-size 3MiB mr:/d", "power of two"),
        ("millrace unpin", "<PATH>"),
        ("millrace resolve mr:/p/f", "--keep"),
        ("millrace resolve --keep local", "<PATH>"),
        ("millrace resolve mr:/p --keep local --null", "--files-from"),
        ("millrace hydrate mr:/p --older yesterday", "30d"),
        ("millrace export mr:/p --state new", "released, partial, hydrated, dirty, exported"),
        ("millrace export mr:/p --state dirty --atomic", "cannot be used with"),
        ("millrace import mr:/p --atomic", "unexpected"),
        ("millrace job show seven", "millrace job list"),
        ("millrace link add s3://b p --mode write", "import-export"),
        ("millrace cluster invite --dir D --role king --out F", "metadata"),
        ("millrace dev up --dir D --targets 0", "1..=32"),
        ("millrace dev up --dir D --capacity 1", "--capacity <SIZE>': a target needs 49 MiB"),
        ("millrace target add", "<DIRECTORY>"),
        ("millrace target add /srv/1 --capacity 48MiB", "a target needs 49 MiB"),
        ("millrace frobnicate", "unrecognized"),
    ] {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        let text = error.to_string();
        assert!(text.contains(remedy), "{line}: {text}");
    }
}

#[test]
fn sizes_and_counts_arrive_as_values() {
    let cli = parse("millrace stripe set --chunk-size 1M --count -1 mr:/d").unwrap();
    let Command::Stripe(StripeCommand::Set(set)) = cli.command else {
        panic!("another command");
    };
    assert_eq!(set.layout.chunk_size, ChunkSize::new(MIB).ok());
    assert_eq!(set.layout.count, Some(-1));
    let cli = parse("millrace link add s3://b mr:/p").unwrap();
    let Command::Link(LinkCommand::Add(add)) = cli.command else {
        panic!("another command");
    };
    assert_eq!(add.mode, LinkModeName::ReadOnly);
}

#[test]
fn states_are_named_by_commas_and_again_and_each_counts_once() {
    let line = "millrace release mr:/p --state exported,hydrated --state hydrated";
    let Command::Release(select) = parse(line).unwrap().command else {
        panic!("another command");
    };
    assert_eq!(select.states(), [FileState::Hydrated, FileState::Exported]);
}

#[test]
fn a_scrub_needs_targets_and_at_most_one_action() {
    for line in [
        "millrace target scrub",
        "millrace target scrub 0011223344556677 --all",
        "millrace target scrub --all --start --pause",
        "millrace target scrub --all --rate 1MiB --start",
        "millrace target show 00112233",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

/// All commands with their names, the program's own first.
fn all() -> Vec<(String, clap::Command)> {
    let mut found = vec![("millrace".to_owned(), Cli::command())];
    let mut next = 0;
    while let Some((name, command)) = found.get(next).cloned() {
        let below = command.get_subcommands();
        found.extend(below.map(|sub| (format!("{name} {}", sub.get_name()), sub.clone())));
        next += 1;
    }
    found
}

/// Those with examples for operators.
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "docs/cli.md",
    "docs/hydration.md",
    "docs/install.md",
    "docs/operations.md",
    "docs/performance.md",
    "docs/semantics.md",
    "docs/upgrade.md",
];

/// A document of the repository.
fn document(name: &str) -> String {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(own.parent().expect("the repository").join(name)).expect(name)
}

/// The lines of a document's blocks of code.
fn code(text: &str) -> String {
    let mut is_fenced = false;
    let mut code = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// The commands of this program in lines that begin with one, without what a shell makes of them:
/// a comment stands behind two spaces.
fn examples(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with("millrace "));
    let commands = lines.filter_map(|line| line.split("  ").next());
    let commands = commands.flat_map(|line| line.split(" && "));
    let commands = commands.filter_map(|command| command.split(" | ").next());
    commands.filter(|command| !command.contains("$(") && !command.contains('…')).collect()
}

#[test]
fn every_example_of_a_help_or_a_document_parses() {
    let helps = all().into_iter().filter_map(|(name, command)| {
        command.get_after_help().map(|help| (format!("{name} --help"), help.to_string()))
    });
    let mut texts: Vec<_> = helps.collect();
    for name in DOCUMENTS {
        texts.push((name.to_owned(), code(&document(name))));
    }
    let mut count = 0;
    for (name, text) in &texts {
        for line in examples(text) {
            count += 1;
            if let Err(error) = parse(line) {
                panic!("{name}: {line}: {error}");
            }
        }
    }
    assert!(count > 80, "{count} examples were found");
}

#[test]
fn every_command_stands_in_the_index_of_its_document() {
    let document = document("docs/cli.md");
    let (index, _) = document.split_once("\n## ").expect("an index comes first");
    for (name, command) in all() {
        let name = name.trim_start_matches("millrace ");
        assert!(command.has_subcommands() || index.contains(&format!("`{name}`")), "{name}");
    }
}
