#!/usr/bin/env bash
# Installs what the tests need and runs them all. Leaves no process and no mount behind.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
cd "$repository"
mkdir -p "$target_dir"

usage() {
    cat <<'TEXT'
usage: scripts/test.sh [--long] [--quick]
  --quick  unit and integration tests in Rust only; no PyTorch run
  --long   also the runs that take long, which write their figures to docs/reliability.md
TEXT
}

long=
quick=
while (($#)); do
    case $1 in
    --long) long=1 ;;
    --quick) quick=1 ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done

install_everything() {
    need_rust
    need_fuse
    need_debian git rsync sqlite3 tar vim-tiny curl procps
    [[ -n $quick ]] || need_debian python3-torch python3-torchvision
    need_python
}

build() {
    cargo build --locked --workspace --all-targets --quiet
}

run_rust_tests() {
    export MILLRACE_TEST_PYTHON=$python
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --locked --workspace ${CI:+--profile ci}
    else
        cargo test --locked --workspace --quiet --lib --bins --tests
    fi
}

run_documentation_tests() {
    cargo test --locked --workspace --doc --quiet
}

run_end_to_end() {
    "$python" tests/e2e/train.py --binaries "$binaries" "$@"
}

step "what the tests need" install_everything
step "build" build
status=0
step "Rust tests" run_rust_tests || status=1
step "documentation tests" run_documentation_tests || status=1
if [[ -z $quick ]]; then
    step "end to end" run_end_to_end || status=1
fi
if [[ -n $long ]]; then
    step "long runs" run_end_to_end --long --report docs/reliability.md || status=1
fi
((status == 0)) || fail "some tests failed: see above"
say "test: everything passed in $SECONDS s"
