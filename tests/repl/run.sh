#!/bin/sh
# run.sh: golden transcripts, then batch mode. From the repository's root.
#   tests/repl/run.sh [BUILD]        ACCEPT=1 tests/repl/run.sh rewrites the transcripts
set -u
b=${1:-build}
case $b in /*) ;; *) b=$PWD/$b ;; esac
export SD_PROGRAM="$b/sd" LC_ALL=C.UTF-8 NO_COLOR=1
out=$(mktemp)
"$SD_PROGRAM" tests/repl/golden.lua ${ACCEPT:+--accept} tests/repl/*.txt > "$out" 2>&1
cat "$out"
p=$(tail -n 1 "$out" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
f=$(tail -n 1 "$out" | sed -n 's/.*passed, \([0-9]*\) failed$/\1/p')
sh tests/repl/batch.sh > "$out" 2>&1
cat "$out"
p=$((${p:-0} + $(tail -n 1 "$out" | sed -n 's/^\([0-9]*\) passed.*/\1/p')))
f=$((${f:-1} + $(tail -n 1 "$out" | sed -n 's/.*passed, \([0-9]*\) failed$/\1/p')))
rm -f "$out"
echo "$p passed, $f failed"
[ "$f" -eq 0 ]
