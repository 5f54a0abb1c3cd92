#!/bin/sh
# build.sh: the build's own rules, with this Makefile over a tree of a few small files: what is out of
# date after which change, what is printed, what is swept out; and how tests/run.sh counts.
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
pass=0 fail=0
ok() { pass=$((pass + 1)); }
bad() { fail=$((fail + 1)); echo "FAILED: $*" | head -c 1000; echo; }
is() { if [ "$2" = "$3" ]; then ok; else bad "$1: expected [$2], got [$3]"; fi; }
has() { case $3 in *"$2"*) ok ;; *) bad "$1: expected [$2] in [$3]" ;; esac; }
lacks() { case $3 in *"$2"*) bad "$1: [$2] in [$3]" ;; *) ok ;; esac; }
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS CPPFLAGS LDFLAGS SAN OPT V WERROR B

t=$tmp/tree
mkdir -p "$t"
for d in core/base core/nn core/lua core/include lua plugins scripts tests/unit tests/plugins; do mkdir -p "$t/$d"; done
cp Makefile "$t"
cp core/lua/embed.h "$t/core/lua"
cp scripts/embed.awk scripts/deps.sh "$t/scripts"
cp tests/run.sh "$t/tests"
cd "$t" || exit 2
echo 'int sd_one(void); int sd_one(void) { return 1; }' > core/base/one.c
echo 'int sd_two(void); int sd_two(void) { return 2; }' > core/base/two.c
echo '#define R(x) R_(x, SD_REAL_BITS)
#define R_(x, n) R__(x, n)
#define R__(x, n) x##n
int R(sd_k)(void); int R(sd_k)(void) { return SD_REAL_BITS; }' > core/nn/some_k.c
cat > core/lua/main.c << 'END'
#include <stdio.h>
int sd_one(void);
int main(void) { return printf("demo %d\n", sd_one()) < 0; }
END
echo 'return 1' > lua/a.lua
echo 'return 2' > lua/b.lua
echo '#define P 1' > core/include/sd_plugin.h
for p in p q; do printf '#include "sd_plugin.h"\nint sd_plugin(void);\n__attribute__((visibility("default"))) int sd_plugin(void) { return P; }\n' > "plugins/$p.c"; done
cp plugins/p.c tests/plugins/g.c
echo '#define H 0' > tests/unit/help.h
for u in a b; do printf '#include "help.h"\nint sd_one(void);\nint main(void) { return H * sd_one(); }\n' > "tests/unit/test_$u.c"; done

run() { make --no-print-directory "$@" 2>&1; }
stale() { run -q "$@" > "$tmp/null"; echo $?; } # 0: everything is up to date

out=$(run all tests)
is "the small tree builds" 0 "$(stale all tests)"
is "one line a file" "CC core/base/one.c" "$(echo "$out" | grep -x '[A-Z]* core/base/one.c')"
is "and no more" "" "$(echo "$out" | grep -vxE '(CC|AR|LD|AWK) [a-z0-9/_.]+( \(f(32|64)\))?')"
is "again: nothing" 0 "$(run all tests | grep -vc 'Nothing to be done')"
touch core/base/one.c
has "V=1 shows the command" "-c core/base/one.c -o build/core/base/one.o" "$(run V=1)"
touch core/base/one.c
is "V=0 shows nothing" "" "$(run V=0)"

# what changes a command makes its results old, and only once
for v in NATIVE=1 OPT=-O1 READLINE=no SAN=-fsanitize=undefined CC=c99 CFLAGS=-DX CPPFLAGS=-DX LDFLAGS=-Wl,-O1 WERROR=-Werror VERSION=9; do
    is "$v rebuilds" 1 "$(stale all tests "$v")"
done
run OPT=-O1 CFLAGS=-DX=1 all tests > "$tmp/null"
is "built with other flags" 0 "$(stale OPT=-O1 CFLAGS=-DX=1 all tests)"
is "and back" 1 "$(stale all tests)"
out=$(run all tests)
for f in core/base/one.c "core/nn/some_k.c (f64)" plugins/p.c tests/plugins/g.c tests/unit/test_a.c build/sd; do
    has "back: rebuilt" "$f" "$out"
done
is "the kernels' two forms" "sd_k32 sd_k64" "$(nm build/libsd.a | grep -o 'sd_k[0-9]*' | tr '\n' ' ' | sed 's/ $//')"
is "up to date again" 0 "$(stale all tests)"

# headers
sleep 0.01
touch tests/unit/help.h
out=$(run -n V=1 tests)
has "a test's header" "-o build/tests/test_a" "$out"
lacks "only the tests" "core/base/one.c" "$out"
touch core/include/sd_plugin.h
out=$(run -n V=1 all tests)
has "the plugins' header" "-o build/plugins/p.so" "$out"
has "the gallery too" "-o build/tests/gallery/g.so" "$out"
sed -i 's/#include "help.h"/#define H 0/' tests/unit/test_a.c tests/unit/test_b.c
rm tests/unit/help.h
lacks "a header that is gone" "No rule" "$(run all tests)"

# a source that is gone, or new
rm core/base/two.c lua/b.lua plugins/q.c tests/unit/test_b.c
echo 'int sd_new(void); int sd_new(void) { return 3; }' > core/base/new.c
is "removed sources" 1 "$(stale all tests)"
run all tests > "$tmp/null"
is "then up to date" 0 "$(stale all tests)"
is "the library" "new.o one.o" "$(ar t build/libsd.a | grep -E '^(one|two|new)' | sort | tr '\n' ' ' | sed 's/ $//')"
is "swept out" "" "$(ls build/core/base/two.o build/plugins/q.so build/tests/test_b 2> "$tmp/null")"
has "the embedded Lua" "a.lua" "$(cat build/gen/lua_embed.c)"
lacks "the embedded Lua" "b.lua" "$(cat build/gen/lua_embed.c)"

# a newcomer's first command
rm -rf build
out=$(run demo)
is "make demo is short" "2" "$(echo "$out" | wc -l)"
has "make demo" "demo 1" "$out"
echo 'int' > core/base/one.c
has "an error is shown all the same" "core/base/one.c:1" "$(run demo)"

# how the tests are counted
mkdir -p build/tests
cat > build/tests/test_x << 'END'
#!/bin/sh
printf '[  SKIPPED ] s\n[  FAILED  ] f\n[==========] 4 test(s) run.\n[  PASSED  ] 2 test(s).\n'
printf '[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] s\n[  FAILED  ] 1 test(s), listed below:\n[  FAILED  ] f\n'
exit 1
END
chmod +x build/tests/test_x
is "cmocka's counts" "2 passed, 1 failed, 1 skipped" "$(sh tests/run.sh build test_x | tail -n 1)"
for s in lua/run repl/run repl/allocs install build; do
    mkdir -p "$(dirname "tests/$s")"
    echo 'echo "3 passed, 0 failed"' > "tests/$s.sh"
done
echo 'echo "1 passed, 0 failed, 2 skipped"' > tests/repl/allocs.sh
rm build/tests/test_x
is "the scripts' counts" "13 passed, 0 failed, 2 skipped" "$(sh tests/run.sh build | tail -n 1)"
echo 'exit 3' > tests/install.sh
out=$(sh tests/run.sh build) && bad "a suite that broke off passes"
is "a suite that broke off" "10 passed, 1 failed, 2 skipped" "$(echo "$out" | tail -n 1)"

echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ]
