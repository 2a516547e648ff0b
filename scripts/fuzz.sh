#!/usr/bin/env bash
# Looks for bytes that a decoder cannot bear: libFuzzer on the targets of fuzz/, with the toolchain
# that builds everything else.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
cd "$repository/fuzz"

usage() {
    cat <<'TEXT'
usage: scripts/fuzz.sh [TARGET] [SECONDS]
Runs one fuzz target, or all of them one after the other, for SECONDS each (60 at first). The corpus
is fuzz/corpus, begun with a sample of every format; what fails is written to fuzz/artifacts, and is
run again with: scripts/fuzz.sh TARGET FILE
Needs a C++ compiler, for libFuzzer.
TEXT
}

targets=(superblock root node section entry change batch frame message request)
case ${1:-} in
-h | --help) usage && exit 0 ;;
"" | [0-9]*) ;;
*) targets=("$1") && shift ;;
esac
input=${1:-60}

mkdir -p "$target_dir"
host=$(rustc --version --verbose | sed --quiet 's/^host: //p')
# What cargo-fuzz passes without a sanitizer, which stable compilers take too. For the host alone:
# build scripts are not instrumented.
coverage=(
    --cfg=fuzzing
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0
)

build() {
    RUSTFLAGS="${coverage[*]}" cargo build --locked --quiet --release --target "$host" --bins \
        --target-dir "$target_dir/fuzz"
}

write_samples() {
    local of said
    for of in "millrace-storage-target formats" "millrace-fuse-server protocol"; do
        said=$(MILLRACE_FUZZ_CORPUS=$repository/fuzz/corpus \
            cargo test --locked --quiet --manifest-path "$repository/Cargo.toml" \
            --package "${of% *}" --test "${of#* }" -- --ignored write_corpus)
        # Cargo takes a word that no test has for a success.
        grep --quiet 'test result: ok\. [1-9]' <<<"$said" || fail "nobody writes samples of $of"
    done
}

step "rust toolchain" need_rust
step "build" build
step "samples" write_samples
mkdir -p artifacts
for target in "${targets[@]}"; do
    program=$target_dir/fuzz/$host/release/$target
    if [[ -f $input ]]; then
        "$program" "$input"
    else
        mkdir -p "corpus/$target"
        "$program" "corpus/$target" -max_total_time="$input" -artifact_prefix="artifacts/$target-" \
            -max_len=8192 -print_final_stats=1
    fi
done
say "fuzz: nothing found"
