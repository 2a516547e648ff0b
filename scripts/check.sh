#!/usr/bin/env bash
# Everything that can be said about the code without running it. The same command in CI and here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
cd "$repository"
mkdir -p "$target_dir"

usage() {
    cat <<'TEXT'
usage: scripts/check.sh
Checks format, lints (warnings are errors), documentation (warnings are errors) and shell scripts;
licences, advisories and banned crates with cargo-deny where it is installed (deny.toml). The tidy
test, which scripts/test.sh runs, checks licences without it.
TEXT
}

check_format() {
    cargo fmt --all -- --check
}

check_lints() {
    cargo clippy --locked --workspace --all-targets --quiet -- --deny warnings
}

# The libraries': programs are thin, or benchmarks. What is compiled for it is what the lints have
# compiled, if the compiler is called in the way in which `cargo clippy` calls it; otherwise it is
# compiled once more. It begins anew, because each library is merged with all that is there.
check_documentation() {
    local clippy separator=__CLIPPY_HACKERY__
    rm --recursive --force "$target_dir/doc"
    clippy=$(rustc --print sysroot)/bin/clippy-driver
    RUSTC_WORKSPACE_WRAPPER=$clippy CLIPPY_ARGS=--deny${separator}warnings$separator \
        RUSTDOCFLAGS='--deny warnings' \
        cargo doc --locked --workspace --lib --no-deps --document-private-items --quiet
}

check_scripts() {
    local script
    for script in scripts/*.sh scripts/lib/*.sh .ci/run; do
        bash -n "$script"
    done
    python3 -m compileall -q tests/e2e
}

# The fuzz targets are a workspace of their own, with versions of their own to keep.
check_fuzz_lock() {
    cargo metadata --locked --quiet --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
}

# Advisories need the advisory database, which is a git repository that an offline machine cannot
# fetch; licences, bans and sources need nothing but Cargo.lock.
check_dependencies() {
    if ! command -v cargo-deny >/dev/null; then
        say "cargo-deny is not installed: advisories are not checked (licences are, by tidy)"
        return 0
    fi
    cargo deny --offline check licenses bans sources
    cargo deny check advisories || say "advisories could not be checked here"
}

case ${1:-} in
"") ;;
-h | --help) usage && exit 0 ;;
*) usage >&2 && exit 2 ;;
esac

step "rust toolchain" need_rust
step "format" check_format
step "scripts" check_scripts
step "lints" check_lints
step "documentation" check_documentation
step "versions of the fuzz targets" check_fuzz_lock
step "dependencies" check_dependencies
say "check: everything passed in $SECONDS s"
