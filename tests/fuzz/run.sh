#!/bin/sh
# run.sh: every fuzz target for some seconds each, on a scratch copy of its seeds.
#   tests/fuzz/run.sh DIR SECONDS
set -u
dir=$1 secs=${2:-120} bad=0
for f in "$dir"/fuzz_*; do
    [ -x "$f" ] || continue
    name=${f##*/}
    work=$dir/scratch/$name
    mkdir -p "$work"
    seeds=tests/fuzz/corpus/${name#fuzz_}
    [ -d "$seeds" ] || seeds=
    echo "== $name, $secs s"
    # -malloc_limit_mb: no input makes a loader allocate more than a small multiple of its size.
    # shellcheck disable=SC2086
    if "$f" -max_total_time="$secs" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 \
        -artifact_prefix="$work/" "$work" $seeds > "$work.log" 2>&1; then
        grep -E 'stat::(number_of_executed_units|peak_rss_mb)' "$work.log" | sed 's/^/   /'
    else
        tail -n 30 "$work.log"
        bad=1
    fi
done
exit $bad
