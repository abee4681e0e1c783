#!/usr/bin/env bash
# Runs the fuzz targets: scripts/fuzz.sh [seconds per target] [target...].
# The flags are those that cargo-fuzz gives; they are stable ones, so neither it nor a nightly toolchain is needed.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ensure_build_tools
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} != 0 ] || mapfile -t targets < <(cd fuzz/targets && ls -- *.rs | sed 's/\.rs$//')

# Our code is safe Rust, and the C libraries (RocksDB's is the one that scripts/rocksdb builds) would not be instrumented: an
# address sanitizer would only make it slow. A target triple that is named keeps build scripts from being instrumented.
host=$(rustc -vV | sed -n 's/^host: //p')
flags="--cfg fuzzing -Cdebug-assertions -Clink-arg=-fuse-ld=mold -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
-Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0"
RUSTFLAGS=$(echo $flags) cargo build --quiet --manifest-path fuzz/Cargo.toml --target-dir "$CARGO_TARGET_DIR/fuzz" \
    --release --target "$host" $(printf -- '--bin %s ' "${targets[@]}")

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
for target in "${targets[@]}"; do
    say "$target, $seconds s"
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    seeds=fuzz/seeds
    if [ -d "fuzz/seeds/$target" ]; then
        seeds="fuzz/seeds/$target"
    fi
    # One memory limit for all: a target that needs more has a leak or a bomb.
    "$CARGO_TARGET_DIR/fuzz/$host/release/$target" "fuzz/corpus/$target" "$seeds" -artifact_prefix="fuzz/artifacts/$target/" \
        -max_total_time="$seconds" -max_len=4096 -len_control=20 -rss_limit_mb=2048 -timeout=10 \
        -print_final_stats=1 -verbosity=0 || failed="$failed $target"
done
[ -z "$failed" ] || die "failed:$failed"
