#!/bin/sh
# run.sh: Lua tests and doctests. From the repository's root.  tests/lua/run.sh [BUILD]
set -u
b=${1:-build}
p=0 f=0
out=$(mktemp)
for t in tests/lua/*.lua; do
    timeout 300 "$b/sd" -q "$t" > "$out" 2>&1
    code=$?
    tp=$(tail -n 1 "$out" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
    tf=$(tail -n 1 "$out" | sed -n 's/.*passed, \([0-9]*\) failed.*/\1/p')
    if [ "$code" -ne 0 ] && [ "${tf:-0}" -eq 0 ]; then tf=1; fi
    [ "${tf:-0}" -eq 0 ] || { echo "in $t (exit $code):"; cat "$out"; }
    p=$((p + ${tp:-0})) f=$((f + ${tf:-0}))
done
rm -f "$out"
echo "$p passed, $f failed"
[ "$f" -eq 0 ]
