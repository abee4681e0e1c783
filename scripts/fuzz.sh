#!/bin/sh
# Runs the fuzz targets: scripts/fuzz.sh [seconds per target] [target].
# Needs cargo-fuzz (cargo install cargo-fuzz); RUSTC_BOOTSTRAP spares a nightly toolchain.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
export RUSTC_BOOTSTRAP=1
for target in ${2:-$(cargo fuzz list)}; do
    echo "== $target, $seconds s"
    mkdir -p "fuzz/corpus/$target"
    # One address space limit for all: a target that needs more has a leak or a bomb.
    cargo fuzz run "$target" "fuzz/corpus/$target" fuzz/seeds -- \
        -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=0
done
