#!/usr/bin/env bash
# Installs what the tests need and runs them all. Leaves no process and no mount behind.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
cd "$repository"
mkdir -p "$target_dir"

usage() {
    cat <<'TEXT'
usage: scripts/test.sh [--long] [--quick] [--prepare]
  --quick  unit and integration tests in Rust only; no PyTorch run
  --long   also the runs that take long, which write their figures to docs/reliability.md
  --prepare
           install what the tests need, and run none
TEXT
}

long=
quick=
prepare=
while (($#)); do
    case $1 in
    --long) long=1 ;;
    --quick) quick=1 ;;
    --prepare) prepare=1 ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done

install_everything() {
    need_rust
    need_fuse
    need_debian git rsync sqlite3 tar vim-tiny curl procps e2fsprogs mount util-linux acl attr
    need_postgres
    [[ -n $quick ]] || need_debian python3-torch python3-torchvision
    need_python
    need_azurite
}

# FUSE over io_uring is tested where the kernel has it, and only mounts that ask for it notice.
# Tests fail without what they need, unless a variable says that it is not there.
ring=/sys/module/fuse/parameters/enable_uring
ring_before=
offer_ring() {
    [[ -e $ring ]] || modprobe fuse 2>/dev/null || true
    if [[ ! -e $ring ]]; then
        say "THIS KERNEL HAS NO FUSE OVER IO_URING: it is not tested"
        export MILLRACE_TEST_WITHOUT_URING=1
        return 0
    fi
    ring_before=$(<"$ring")
    echo Y >"$ring" || ring_before=
    if [[ $(<"$ring") != Y ]]; then
        say "FUSE OVER IO_URING CANNOT BE SWITCHED ON HERE: it is not tested"
        export MILLRACE_TEST_WITHOUT_URING=1
    fi
}

# Small disks, and some that lose power, are loop devices. A container may have none.
find_loop_devices() {
    if ! losetup --find >/dev/null 2>&1; then
        say "THIS MACHINE HAS NO LOOP DEVICES: full disks and lost power are tested without them"
        export MILLRACE_TEST_WITHOUT_LOOP_DEVICES=1
    fi
}

# Whom a program asks to keep processors awake.
find_latency_requests() {
    if ! (: >/dev/cpu_dma_latency) 2>/dev/null; then
        say "THIS KERNEL TAKES NO REQUESTS FOR LATENCY: that daemons make some is not tested"
        export MILLRACE_TEST_WITHOUT_LATENCY_REQUESTS=1
    fi
}

build() {
    cargo build --locked --workspace --all-targets --quiet
}

run_rust_tests() {
    export MILLRACE_WEED=$python_dir/bin/weed MILLRACE_AZURITE=$azurite
    export MILLRACE_TEST_PYTHON=$python MILLRACE_TEST_BINARIES=$binaries MILLRACE_TEST_DIR=$work
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --locked --workspace ${CI:+--profile ci} ${long:+--no-fail-fast}
    else
        cargo test --locked --workspace --quiet --lib --bins --tests --examples
    fi
}

run_documentation_tests() {
    cargo test --locked --workspace --doc --quiet
}

# Rounds are for whoever wants a figure.
run_end_to_end() {
    "$python" tests/e2e/train.py --binaries "$binaries" --directory "$work" \
        ${CI:+--cold-rounds 1}
}

# Programs that only the long runs need; nothing of them is linked or shipped.
install_suites() {
    cargo install --quiet --root "$target_dir/tools" fsx@0.3.2 pjdfstest@0.2.2
}

# The tests that draw their commands at random, with more of them and other seeds, which those that
# fail print; but `stress` and `processes` always have the same, and it is the moments at which they
# interrupt programs that are others. What they have seen goes to the report with the rest.
run_random() {
    export MILLRACE_TEST_FIGURES=$figures
    local failed=0
    more ROUNDS=10 LENGTH=4 -- server replay::
    more ROUNDS=40 LENGTH=6 -- server namespace::
    more ROUNDS=2000 -- server every_start_finds
    more ROUNDS=2000 -- server with_a_mounted_store a_mounted_store_holds
    more LENGTH=10 -- power what_the_model_holds
    more LENGTH=10 SEED="$(date +%s)" -- formats
    more ROUNDS=10000 -- power after_any_end
    more LENGTH=20 -- mount twin:: alternation::
    more SECONDS=60 -- mount postgres
    more LENGTH=20 -- mount coherence::
    more LENGTH=100 -- mount directories::
    more LENGTH=10 -- cluster exactly_once::
    more LENGTH=10 -- cluster killed_jobs::
    # Daemons of the tests stand for those of several hosts, but for these.
    more SAME_HOST_STREAMS=64 -- cluster crashes:: exactly_once:: killed_jobs:: flood:: unwritten::
    more LENGTH=400 -- kernel stress
    more LENGTH=10 -- processes
    # Where something fails no report is written.
    [[ ! -e $figures ]] || cat "$figures"
    return "$failed"
}

# more SETTING=VALUE... -- TEST [FILTER...]: one of those tests. One that fails does not keep the
# others from running; `failed` is the caller's. Cargo takes a word that no test has for a success.
more() {
    local settings=()
    while [[ $1 != -- ]]; do
        settings+=("MILLRACE_TEST_$1")
        shift
    done
    local test=$2
    shift 2
    local word
    for word in "${@:-}"; do
        if ! has_tests "$test" "$word"; then
            say "  no test of $test is called like '$word'"
            failed=1
        fi
    done
    step "  $test $* (${settings[*]#MILLRACE_TEST_})" env "${settings[@]}" \
        cargo test --locked --workspace --test "$test" --quiet -- "$@" || failed=1
}

# Whether a word is in the name of one of those tests.
has_tests() {
    local names
    names=$(cargo test --locked --workspace --test "$1" --quiet -- --list "$2") || return 1
    grep --quiet ': test$' <<<"$names"
}

run_long() {
    local failed=0
    "$python" tests/e2e/fuse.py --examples "$binaries/examples" --directory "$work" \
        --tools "$target_dir/tools/bin" || failed=1
    "$python" tests/e2e/endure.py --binaries "$binaries" --directory "$work" \
        --tools "$target_dir/tools/bin" --report docs/reliability.md --figures "$figures" ||
        failed=1
    return "$failed"
}

# Whatever a test that was killed has left: processes that name a file of ours, mounts, files.
sweep() {
    local status=$? process point
    trap - EXIT
    for process in /proc/[0-9]*; do
        if tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep --quiet --fixed-strings "$work/"; then
            kill -KILL "${process#/proc/}" 2>/dev/null || true
        fi
    done
    # By force: a process that waits for a mount of its own cannot even be killed.
    while read -r point; do
        umount --force --lazy "$point" 2>/dev/null || true
    done < <(cut --delimiter=' ' --fields=5 /proc/self/mountinfo | grep --fixed-strings "$work/")
    [[ -z $ring_before ]] || echo "$ring_before" >"$ring"
    rm --recursive --force --one-file-system "$work"
    exit "$status"
}

if [[ -n $prepare ]]; then
    step "what the tests need" install_everything
    exit 0
fi

# Short, because the paths of sockets have at most 108 bytes.
work=$(mktemp --directory --tmpdir millrace-test.XXXXXX)
figures=$work/figures
trap sweep EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

step "what the tests need" install_everything
offer_ring
find_loop_devices
find_latency_requests
step "build" build
status=0
step "Rust tests" run_rust_tests || status=1
step "documentation tests" run_documentation_tests || status=1
if [[ -z $quick ]]; then
    step "end to end" run_end_to_end || status=1
fi
if [[ -n $long ]]; then
    step "test suites of others" install_suites
    step "random commands" run_random || status=1
    step "long runs" run_long || status=1
fi
((status == 0)) || fail "some tests failed: see above"
say "test: everything passed in $SECONDS s"
