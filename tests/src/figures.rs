//! What a long run has seen, for `docs/reliability.md`.

use std::{env, fs::OpenOptions, io::Write};

use anyhow::{Context, Result};

/// Prints a line, and appends it to the file that `MILLRACE_TEST_FIGURES` names, if it does.
///
/// # Errors
/// When that file cannot be written.
#[expect(clippy::print_stdout, reason = "what was seen, for whoever reads the test's output")]
pub fn report(line: &str) -> Result<()> {
    println!("{line}");
    let Some(path) = env::var_os("MILLRACE_TEST_FIGURES") else { return Ok(()) };
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    // One call, so that lines of tests that run at once do not mix.
    let whole = format!("{line}\n");
    file.write_all(whole.as_bytes()).with_context(|| format!("writing {}", path.display()))
}
