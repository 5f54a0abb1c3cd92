#!/bin/sh
# run.sh: every test, from the repository's root; ends with "N passed, N failed".
#   tests/run.sh [BUILD]
# A cmocka program counts by its own test functions; the shell's suites print the same closing line.
set -u
b=${1:-build}
pass=0 fail=0
log=$b/tests/log
mkdir -p "$log"
export LC_ALL=C.UTF-8 SD_BUILD="$b"
unset OPENBLAS_NUM_THREADS
count() { # name, status, file
    p=$(grep -oE '\[  PASSED  \] [0-9]+' "$3" | awk '{s += $NF} END {print s + 0}')
    f=$(grep -cE '^\[  FAILED  \] [a-z_0-9]+$' "$3")
    if tail -n 1 "$3" | grep -qE '^[0-9]+ passed, [0-9]+ failed'; then
        p=$(tail -n 1 "$3" | sed 's/ passed.*//')
        f=$(tail -n 1 "$3" | sed 's/.*passed, \([0-9]*\) failed.*/\1/')
    fi
    if [ "$2" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    pass=$((pass + p)) fail=$((fail + f))
    if [ "$2" -ne 0 ] || [ "$f" -ne 0 ]; then
        echo "FAILED $1 (exit $2):"
        tail -n 60 "$3" | sed 's/^/    /'
    else
        echo "ok     $1: $p tests"
    fi
}
# Under the sanitizers everything takes several times as long.
limit=300
[ -z "${SD_SANITIZED:-}" ] || limit=1500
for t in "$b"/tests/test_*; do
    [ -x "$t" ] && [ -f "$t" ] || continue
    name=${t##*/}
    case $name in *.*) continue ;; esac
    timeout "$limit" "$t" > "$log/$name.log" 2>&1 < /dev/null
    count "$name" $? "$log/$name.log"
done
for s in tests/lua/run.sh tests/repl/run.sh tests/repl/allocs.sh tests/install.sh; do
    name=$(echo "${s#tests/}" | tr / - | sed 's/\.sh$//')
    timeout "$((limit * 2))" sh "$s" "$b" > "$log/$name.log" 2>&1 < /dev/null
    count "$s" $? "$log/$name.log"
done
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
