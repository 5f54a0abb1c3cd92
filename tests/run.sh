#!/bin/sh
# run.sh: every test, from the repository's root; the last line is "N passed, N failed, N skipped".
#   tests/run.sh [BUILD [TEST ...]]        named cmocka programs only, such as test_net
# A cmocka program counts by its own test functions; the shell's suites print the same closing line
# (", N skipped" may be left out).
set -u
b=${1:-build}
[ $# -eq 0 ] || shift
pass=0 fail=0 skip=0
log=$b/tests/log
mkdir -p "$log"
export LC_ALL=C.UTF-8 SD_BUILD="$b"
unset OPENBLAS_NUM_THREADS
count() { # name, status, file
    for what in PASSED FAILED SKIPPED; do # "[  PASSED  ] 12 test(s)."
        eval "n_$what=\$(sed -nE 's/^\[ +$what +\] ([0-9]+) test.*/\1/p' \"\$3\" | awk '{n += \$1} END {print n + 0}')"
    done
    p=$n_PASSED f=$n_FAILED s=$n_SKIPPED
    last=$(tail -n 1 "$3")
    if echo "$last" | grep -qxE '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?'; then
        p=${last%% passed*}
        f=$(echo "$last" | sed 's/.*passed, \([0-9]*\) failed.*/\1/')
        s=$(echo "$last" | sed -n 's/.*failed, \([0-9]*\) skipped$/\1/p')
    fi
    s=${s:-0}
    if [ "$2" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    pass=$((pass + p)) fail=$((fail + f)) skip=$((skip + s))
    if [ "$2" -ne 0 ] || [ "$f" -ne 0 ]; then
        echo "FAILED $1 (exit $2):"
        tail -n 60 "$3" | sed 's/^/    /'
    else
        [ "$s" -eq 0 ] && echo "ok     $1: $p tests" || echo "ok     $1: $p tests, $s skipped"
    fi
}
# Under the sanitizers everything takes several times as long.
limit=300
[ -z "${SD_SANITIZED:-}" ] || limit=1500
program() {
    name=${1##*/}
    timeout "$limit" "$1" > "$log/$name.log" 2>&1 < /dev/null
    count "$name" $? "$log/$name.log"
}
if [ $# -gt 0 ]; then
    for t; do program "$b/tests/$t"; done
else
    for t in "$b"/tests/test_*; do
        case ${t##*/} in *.*) continue ;; esac
        [ -x "$t" ] && [ -f "$t" ] && program "$t"
    done
    for s in tests/lua/run.sh tests/repl/run.sh tests/repl/allocs.sh tests/install.sh tests/build.sh; do
        name=$(echo "${s#tests/}" | tr / - | sed 's/\.sh$//')
        timeout "$((limit * 2))" sh "$s" "$b" > "$log/$name.log" 2>&1 < /dev/null
        count "$s" $? "$log/$name.log"
    done
fi
echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
