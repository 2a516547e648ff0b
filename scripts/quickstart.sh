#!/usr/bin/env bash
# Shows Millrace at work on this machine: a bucket of pictures, a cluster, a mount, a checkpoint.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
cd "$repository"
mkdir -p "$target_dir"

usage() {
    cat <<'TEXT'
usage: scripts/quickstart.sh [--keep | --stop] [--pictures N]
  --keep        leave everything running, and say how to look around
  --stop        stop and remove what an earlier run with --keep has left
  --pictures N  size of the data set [default: 2000]
TEXT
}

place=$target_dir/quickstart
state=$place/cluster
mount=$place/mount
server=$place/bucket.json
pictures=2000
checkpoint_bytes=268435456
keep=
only_stop=

while (($#)); do
    case $1 in
    --keep) keep=1 ;;
    --stop) only_stop=1 ;;
    --pictures) pictures=${2:?--pictures needs a number} && shift ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done

millrace() {
    "$binaries/millrace" --dir "$state" "$@"
}

demonstrate() {
    "$python" scripts/lib/demonstrate.py --server "$server" "$@" | sed 's/^/    /'
}

# The bucket server's process, if it still is that: ids are used again.
bucket_pid() {
    local pid
    [[ -s $server ]] || return 0
    pid=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$server")
    if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep --quiet --fixed-strings "$place"; then
        printf '%s' "$pid"
    fi
}

take_down() {
    local pid
    if [[ -d $state && -x $binaries/millrace ]]; then
        millrace dev down >/dev/null || true
    fi
    if mountpoint --quiet "$mount" 2>/dev/null; then
        umount --lazy "$mount" || true
    fi
    pid=$(bucket_pid)
    if [[ -n $pid ]]; then
        kill -KILL "$pid" 2>/dev/null || true
        # Not for ever: in a container nobody may wait for what has ended.
        for _ in {1..100}; do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        "$python" - "$server" <<'SOCKETS'
import json, sys
sys.path.insert(0, "tests/e2e")
import bucket_server
bucket_server.remove_sockets(json.load(open(sys.argv[1]))["ports"])
SOCKETS
    fi
    rm --recursive --force --one-file-system "$place"
}

at_exit() {
    local status=$?
    trap - EXIT
    if ((status != 0)); then
        say "quickstart: something failed; the ends of the logs:"
        tail --lines=5 "$state"/*/daemon.log 2>/dev/null || true
    fi
    if ((status != 0)) || [[ -z $keep ]]; then
        take_down
    fi
    exit "$status"
}

install_everything() {
    need_rust
    need_fuse
    need_python
}

build() {
    cargo build --locked --workspace --bins ${CI:+--quiet}
}

start_bucket() {
    "$python" tests/e2e/bucket_server.py --dir "$place/bucket" --detach >"$server"
    local fields
    fields=$("$python" - "$server" <<'FIELDS'
import json, shlex, sys
told = json.load(open(sys.argv[1]))
print("export AWS_ACCESS_KEY_ID=" + shlex.quote(told["access_key"]))
print("export AWS_SECRET_ACCESS_KEY=" + shlex.quote(told["secret_key"]))
print("export AWS_ENDPOINT_URL=" + shlex.quote(told["endpoint"]))
FIELDS
    )
    eval "$fields"
    export AWS_REGION=us-east-1 AWS_ALLOW_HTTP=true
    say "    SeaweedFS at $AWS_ENDPOINT_URL"
}

start_cluster() {
    millrace dev up --targets 2 --mount "$mount" 2>&1 | sed 's/^/    /'
    millrace link add s3://demo/training "$mount/training" --mode import-export | sed 's/^/    /'
}

counted_read() {
    local before after
    before=$("$python" scripts/lib/demonstrate.py --server "$server" requests)
    demonstrate read --tree "$mount/training/pictures" || return
    after=$("$python" scripts/lib/demonstrate.py --server "$server" requests)
    say "    requests to the bucket: $((after - before))"
}

write_checkpoint() {
    demonstrate checkpoint --path "$mount/training/checkpoints/epoch-2.bin" \
        --bytes "$checkpoint_bytes"
}

export_checkpoint() {
    millrace export "$mount/training/checkpoints" --wait | sed 's/^/    /'
    demonstrate compare --path "$mount/training/checkpoints/epoch-2.bin" \
        --key training/checkpoints/epoch-2.bin
}

show_state() {
    millrace state "$mount/training" | sed 's/^/    /'
    millrace status | sed 's/^/    /'
}

if [[ -n $only_stop ]]; then
    take_down
    say "quickstart: stopped and removed"
    exit 0
fi
[[ $(id -u) == 0 ]] || fail "run it as root: it mounts a file system"

say "Millrace quickstart: about 1 minute, and 5 to 10 more the first time for compiling."
say "Disk: 5 GB for compiling under $target_dir, 1.5 GB while it runs. Nothing leaves this machine"
say "except downloads of packages."
trap at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

step "install what is missing" install_everything
step "build" build
take_down
mkdir -p "$place"
step "start an S3 server" start_bucket
step "fill a bucket with pictures" demonstrate fill --local "$place/pictures" --count "$pictures"
step "start a cluster, mount it, link the bucket" start_cluster
step "read everything, cold: from the bucket" counted_read
step "read everything again: the bucket is asked nothing" counted_read
step "write a checkpoint" write_checkpoint
step "export it to the bucket and compare" export_checkpoint
step "how it looks now" show_state

if [[ -n $keep ]]; then
    say "Everything is still running. Look around:"
    say "    ls $mount/training/pictures"
    say "    export MILLRACE_CONFIG=$state/admin.toml"
    say "    $binaries/millrace status"
    say "    $binaries/millrace state $mount/training/checkpoints/epoch-2.bin"
    say "Stop it:"
    say "    scripts/quickstart.sh --stop"
else
    take_down
    trap - EXIT
    say "Everything is taken down again; --keep leaves it running."
fi
say "quickstart: done in $SECONDS s"
