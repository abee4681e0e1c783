# Shared by scripts/start and scripts/test: prerequisites and paths. Sourced, not run.

set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export SHEAF_CACHE=${SHEAF_CACHE:-$HOME/.cache/sheaf}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$SHEAF_CACHE/target}
cd "$repository"

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "run as root, or install sudo: this has to be run as root: $*"
    fi
}

# Those of the named Debian packages that are not there yet.
missing_packages() {
    local package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
    done
}

# What apt knows, as of now.
update_packages() {
    [ -z "${packages_updated:-}" ] || return 0
    as_root apt-get update -qq
    packages_updated=1
}

# Ends with what is to be done where these packages cannot be installed. Nothing is installed here.
check_packages() {
    local missing package
    missing=$(missing_packages "$@" | xargs)
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || die "please install: $missing"
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        die "run as root, or install: $missing"
    fi
    update_packages
    for package in $missing; do
        [ -n "$(candidate "$package")" ] && continue
        die "apt's sources have no package $package (sources are in /etc/apt/sources.list and /etc/apt/sources.list.d, a Debian's is named \"$(suite) main\"); nothing was installed"
    done
}

# Installs those of the named Debian packages that are not there yet.
install_packages() {
    local missing
    check_packages "$@"
    missing=$(missing_packages "$@" | xargs)
    [ -n "$missing" ] || return 0
    say "installing $missing"
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# The name of this Debian's release.
suite() { sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2>/dev/null | grep . || echo stable; }

# Whether the first version is at least the second.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

cargo_version() { cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p'; }
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9][0-9.:]*\).*/\1/p'; }

# rust-toolchain.toml asks for `stable`. Where rustup has none, but its default is new enough, that is used, and nothing is downloaded.
keep_toolchain() {
    local default
    [ -z "${RUSTUP_TOOLCHAIN:-}" ] && command -v rustup >/dev/null || return 0
    rustup toolchain list 2>/dev/null | grep '^stable' >/dev/null && return
    default=$(rustup default 2>/dev/null | cut -d ' ' -f 1) || true
    [ -n "$default" ] || return 0
    if at_least "$(RUSTUP_TOOLCHAIN=$default cargo_version)" "$1"; then
        export RUSTUP_TOOLCHAIN=$default
    fi
}

# Finds Rust of at least the workspace's rust-version, and sets `rust_from`: empty where it is there, else the packages that have it. Nothing
# is installed here; where there is none, it ends with what is to be done.
find_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    rust_from=
    [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
    keep_toolchain "$wanted"
    at_least "$(cargo_version)" "$wanted" && return
    found=$(cargo_version || true)
    command -v apt-get >/dev/null || die "please install Rust $wanted or newer (found: ${found:-none}), for example with rustup"
    at_least "$(candidate cargo-web)" "$wanted" || update_packages
    # Debian 12 keeps a current compiler for its browsers in the *-web packages.
    if at_least "$(candidate cargo-web)" "$wanted"; then
        rust_from="cargo-web rustc-web rustfmt-web rust-web-clippy"
    elif at_least "$(candidate cargo)" "$wanted"; then
        rust_from="cargo rustc rustfmt rust-clippy"
    elif [ -n "$(candidate rustup)" ]; then
        rust_from=rustup
    else
        die "Rust $wanted or newer is needed (found: ${found:-none}), and apt's sources have none: add the suites $(suite)-updates and $(suite)-security to them (a Debian 12 keeps a current cargo-web in $(suite)-security, whose address ends in /debian-security instead of /debian), or install Rust with rustup, then run this again; nothing was installed"
    fi
}

ensure_build_tools() {
    # clang comes with the library that bindgen reads C with; libclang-dev would add a quarter of a gigabyte of static libraries.
    local packages=(build-essential clang mold pkg-config libpcre2-dev ca-certificates "$@")
    # What cannot be had is said before anything is installed or made.
    find_rust
    # shellcheck disable=SC2086
    check_packages "${packages[@]}" $rust_from
    mkdir -p "$SHEAF_CACHE"
    # shellcheck disable=SC2086
    install_packages "${packages[@]}" $rust_from
    if [ "$rust_from" = rustup ]; then
        rustup default stable
        export PATH="$HOME/.cargo/bin:$PATH"
    fi
    hash -r
    find_rust
    [ -z "$rust_from" ] || die "Rust is installed now, but it is not the one that is found first: $(command -v cargo) is $(cargo_version || true)"
    ensure_rocksdb
}

# Unpacks counts, where that has not been done; prints where they are.
unpack_counts() {
    local counts
    counts=$SHEAF_CACHE/profiles/$(cksum <"$1" | cut -d ' ' -f 1).profdata
    if [ ! -f "$counts" ]; then
        mkdir -p "$SHEAF_CACHE/profiles"
        # Half of it would be taken for the whole the next time. (Where its output is taken, a shell goes on after what fails.)
        if ! { gzip -dc "$1" >"$counts.$$" && mv "$counts.$$" "$counts"; }; then
            rm -f "$counts.$$"
            die "$1 cannot be unpacked"
        fi
    fi
    echo "$counts"
}

# Where the counts are by which RocksDB is optimised: those of this clang, if there are any. LLVM reads none of a newer version.
kept_rocksdb_counts() { echo "scripts/profiles/rocksdb-clang-$(clang++ -dumpversion)-$(uname -m).profdata.gz"; }

# What scripts/start builds and what scripts/build does, for cargo: names of functions, and so counts, depend on it.
start_packages=(-p sheaf --no-default-features)
dist_packages=(-p sheaf)

# What --version and the log of a binary say that it was built from, where there is a git that knows.
name_commit() {
    SHEAF_COMMIT=$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null) || SHEAF_COMMIT=
    export SHEAF_COMMIT
}

# Has cargo optimise the profile that is named, `dist` or `start`, by the counts that scripts/pgo has taken: sets `guided`, flags of cargo;
# none, which is said, where there are no counts of this compiler.
find_counts() {
    local counts compiler
    host=$(rustc -vV | sed -n 's/^host: //p')
    compiler=$(rustc -vV | sed -n 's/^release: //p')-$(rustc -vV | sed -n 's/^commit-hash: \(.\{1,9\}\).*/\1/p')
    kept_counts=scripts/profiles/$1-$compiler-$host.profdata.gz
    guided=()
    if [ ! -f "$kept_counts" ]; then
        say "not optimised by counts, so somewhat slower, and nothing else: the ones that are kept are of another compiler than this, $compiler (scripts/pgo takes others)"
        return
    elif [ -n "${RUSTFLAGS:-}${CARGO_ENCODED_RUSTFLAGS:-}" ]; then
        say "not optimised by counts: RUSTFLAGS takes their place"
        return
    fi
    counts=$(unpack_counts "$kept_counts")
    guided=(--config "target.$host.rustflags=[\"-Cprofile-use=$counts\", \"-Cllvm-args=-no-pgo-warn-mismatch\"]")
}

# Has cargo link the RocksDB that scripts/rocksdb builds. Without it, cargo builds one itself, in half an hour.
ensure_rocksdb() {
    [ -n "${ROCKSDB_LIB_DIR:-}" ] && return
    say "RocksDB's library"
    # Without a line for each crate that it downloads first.
    ROCKSDB_LIB_DIR=$(CARGO_TERM_QUIET=true scripts/rocksdb)
    export ROCKSDB_LIB_DIR ROCKSDB_STATIC=1
}
