//! The executable `millrace`.

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_admin_cli::main(std::env::args_os())
}
