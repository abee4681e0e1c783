# Shared by scripts/start and scripts/test: prerequisites and paths. Sourced, not run.

set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export SHEAF_CACHE=${SHEAF_CACHE:-$HOME/.cache/sheaf}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$SHEAF_CACHE/target}
cd "$repository"

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Installs those of the named Debian packages that are not there yet.
install_packages() {
    local missing=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    command -v apt-get >/dev/null || die "please install: ${missing[*]}"
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        die "run as root, or install: ${missing[*]}"
    fi
    say "installing ${missing[*]}"
    if [ -z "${packages_updated:-}" ]; then
        as_root apt-get update -qq
        packages_updated=1
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Whether the first version is at least the second.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

cargo_version() { cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p'; }
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9][0-9.]*\).*/\1/p'; }

# rust-toolchain.toml asks for `stable`. Where rustup has none, but its default is new enough, that is used, and nothing is downloaded.
keep_toolchain() {
    local default
    [ -z "${RUSTUP_TOOLCHAIN:-}" ] && command -v rustup >/dev/null || return 0
    rustup toolchain list 2>/dev/null | grep '^stable' >/dev/null && return
    default=$(rustup default 2>/dev/null | cut -d ' ' -f 1)
    [ -n "$default" ] || return 0
    if at_least "$(RUSTUP_TOOLCHAIN=$default cargo_version)" "$1"; then
        export RUSTUP_TOOLCHAIN=$default
    fi
}

# Rust of at least the workspace's rust-version: what is there, else Debian's, else rustup's.
ensure_rust() {
    local wanted
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
    keep_toolchain "$wanted"
    at_least "$(cargo_version)" "$wanted" && return
    command -v apt-get >/dev/null || die "please install Rust $wanted or newer, for example with rustup"
    if ! at_least "$(candidate cargo-web)" "$wanted"; then
        as_root apt-get update -qq && packages_updated=1
    fi
    # Debian 12 keeps a current compiler for its browsers in the *-web packages.
    if at_least "$(candidate cargo-web)" "$wanted"; then
        install_packages cargo-web rustc-web rustfmt-web rust-web-clippy
    elif at_least "$(candidate cargo)" "$wanted"; then
        install_packages cargo rustc rustfmt rust-clippy
    elif [ -n "$(candidate rustup)" ]; then
        install_packages rustup
        rustup default stable
        export PATH="$HOME/.cargo/bin:$PATH"
    fi
    hash -r
    at_least "$(cargo_version)" "$wanted" \
        || die "Rust $wanted or newer is needed (found: $(cargo_version || true)); install it with rustup, then run this again"
}

ensure_build_tools() {
    mkdir -p "$SHEAF_CACHE"
    # clang comes with the library that bindgen reads C with; libclang-dev would add a quarter of a gigabyte of static libraries.
    install_packages build-essential clang mold pkg-config libpcre2-dev ca-certificates
    ensure_rust
    ensure_rocksdb
}

# Has cargo link the RocksDB that scripts/rocksdb builds. Without it, cargo builds one itself, in half an hour.
ensure_rocksdb() {
    [ -n "${ROCKSDB_LIB_DIR:-}" ] && return
    say "RocksDB's library"
    ROCKSDB_LIB_DIR=$(scripts/rocksdb)
    export ROCKSDB_LIB_DIR ROCKSDB_STATIC=1
}
