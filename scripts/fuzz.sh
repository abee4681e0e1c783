#!/bin/sh
# Runs the fuzz targets: scripts/fuzz.sh [seconds per target] [target].
# Needs cargo-fuzz (cargo install cargo-fuzz); RUSTC_BOOTSTRAP spares a nightly toolchain.
#
# RocksDB is not instrumented: the library that scripts/rocksdb builds is linked, unless ROCKSDB_LIB_DIR names another.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
export RUSTC_BOOTSTRAP=1

ROCKSDB_LIB_DIR=${ROCKSDB_LIB_DIR:-$(scripts/rocksdb)}
export ROCKSDB_LIB_DIR ROCKSDB_STATIC=1

# A fuzzer's process ends without tidying up.
parent=/tmp
if [ -d /dev/shm ]; then
    parent=/dev/shm
fi
TMPDIR=$(mktemp -d "$parent/sheaf-fuzz.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 1' HUP INT TERM

failed=""
for target in ${2:-$(cargo fuzz list)}; do
    echo "== $target, $seconds s"
    mkdir -p "fuzz/corpus/$target"
    seeds=fuzz/seeds
    if [ -d "fuzz/seeds/$target" ]; then
        seeds="fuzz/seeds/$target"
    fi
    # Our code is safe Rust, and the C libraries would not be instrumented: an address sanitizer would
    # only make it slow. One memory limit for all: a target that needs more has a leak or a bomb.
    cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "$seeds" -- \
        -max_total_time="$seconds" -max_len=4096 -len_control=20 -rss_limit_mb=2048 -timeout=10 \
        -print_final_stats=1 || failed="$failed $target"
done
if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
