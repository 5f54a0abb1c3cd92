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
# The README shows the session of readme.txt, answers included.
if awk 'NR == FNR { if (FNR > 1) want = want $0 "\n"; next } { have = have $0 "\n" }
        END { exit index(have, want) == 0 }' tests/repl/readme.txt README.md; then
    readme_ok=1 readme_bad=0
else
    echo "FAILED: README.md does not hold the session of tests/repl/readme.txt"
    readme_ok=0 readme_bad=1
fi
f=$(tail -n 1 "$out" | sed -n 's/.*passed, \([0-9]*\) failed.*/\1/p')
sh tests/repl/batch.sh > "$out" 2>&1
cat "$out"
p=$((${p:-0} + $(tail -n 1 "$out" | sed -n 's/^\([0-9]*\) passed.*/\1/p')))
f=$((${f:-1} + $(tail -n 1 "$out" | sed -n 's/.*passed, \([0-9]*\) failed.*/\1/p')))
rm -f "$out"
p=$((p + readme_ok)) f=$((f + readme_bad))
echo "$p passed, $f failed"
[ "$f" -eq 0 ]
