#!/bin/sh
# allocs.sh: the N-th allocation of the program fails, for many N, through everything that allocates.
#   sh tests/repl/allocs.sh [BUILD [all]]
# Each point runs a scenario with tests/failmalloc.c preloaded. The program must end by itself, either
# with a plain "out of memory" error, or, having got round it, with exactly the output of the
# undisturbed run: an allocation that fails unnoticed shows as a different output. `all` takes every
# point (some minutes); otherwise about 60 a scenario, the early ones densely. Every third point fails
# all allocations from the N-th on, instead of that one.
set -u
if [ "${1:-}" = --point ]; then # one run; prints nothing when it is right
    name=$2 n=$3 many=$4
    d=$tmp/$name.$n.$many
    mkdir "$d"
    # env: timeout itself must not be the preloaded program
    timeout -s KILL 60 env SD_DIR="$d" SD_FAIL_ALLOC="$n" SD_FAIL_MANY="$many" LD_PRELOAD="$lib" \
        SD_FAIL_COUNT="$d/count" \
        "$sd" -q --threads 1 "$tmp/$name.lua" > "$d/out" 2> "$d/err" < /dev/null
    code=$?
    why=
    if [ $code -eq 0 ]; then
        cmp -s "$tmp/$name.out" "$d/out" || grep -q "out of memory" "$d/out" || why="success, but another output"
    elif [ $code -ge 124 ]; then
        why="exit $code (a crash or a hang)"
    elif ! grep -q "memory" "$d/err"; then
        why="exit $code without saying that memory ran out"
    fi
    [ ! -e "$d/count" ] || grep -q ' [1-9]' "$d/count" || echo "$name $n" >> "$tmp/beyond"
    left=$(find "$d" -name '*.tmp*' | head -n 1)
    [ -z "$left" ] || why="$why leaves ${left##*/}"
    [ -z "$why" ] || echo "FAILED: $name, allocation $n (x $many): $why: $(head -c 200 "$d/err" | tr '\n' ' ')"
    rm -rf "$d"
    exit 0
fi
b=${1:-build} all=${2:-}
case $b in /*) ;; *) b=$PWD/$b ;; esac
sd=$b/sd lib=$b/tests/failmalloc.so
if [ -n "${SD_SANITIZED:-}" ]; then # the sanitizer has its own malloc
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export sd lib tmp LC_ALL=C.UTF-8 OPENBLAS_NUM_THREADS=1 NO_COLOR=1 COLUMNS=100
export XDG_CONFIG_HOME="$tmp" XDG_STATE_HOME="$tmp" XDG_DATA_HOME="$tmp"

scenario() { cat > "$tmp/$1.lua"; }
scenario start <<'X'
print "ready"
X
scenario open <<'X'
print(open "tests/ref/models/gpt2")
print(open "tests/ref/models/bert-mlm")
print(open "tests/ref/models/llama-g10-gguf/model.gguf")
X
scenario encode <<'X'
local m = open "data/interim-sd"
print(m, decode(m, encode(m, "Hello, plain world: 12 naïve\n\n tokens ")))
X
scenario heads <<'X'
local w = heads(open "tests/ref/models/gpt2", {draws = 2, seed = 1})
print(w, w:rank())
w:csv(os.getenv "SD_DIR" .. "/w.csv")
for l in io.lines(os.getenv "SD_DIR" .. "/w.csv") do print(l) end
X
scenario probe <<'X'
local ids = {}
for i = 1, 12 do ids[i] = i * 5 % 48 end
local p = probe(open "tests/ref/models/gpt2", ids, {draws = 2, seed = 1})
print(p, p:rank(), table.unpack(p:head(1, 0).planes))
X
scenario plugin <<'X'
plugin.load(os.getenv "SD_GALLERY" .. "/good.so")
plugin.unload "good"
plugin.load(os.getenv "SD_GALLERY" .. "/good.so")
for _, p in plugin.list():rows() do print(p.name, p.version) end
X
scenario truncate <<'X'
local m = open "tests/ref/models/gpt2"
local n = truncate(m, {planes = 1})
print(n, nll(m, {1, 2, 3, 4, 5, 6}), nll(n, {1, 2, 3, 4, 5, 6}), compare(m, n, {1, 2, 3, 4, 5, 6, 7, 8}, {seed = 1}))
X
scenario save <<'X'
local n = truncate(open "tests/ref/models/gpt2", {planes = 1})
local dir = os.getenv "SD_DIR" .. "/saved"
save(n, dir)
local m = open(dir)
print(m, nll(m, {1, 2, 3, 4, 5, 6}), (tostring(lineage(m)):gsub("/[%w_./-]*", "")))
local f = io.open(dir .. "/config.json"); print(#f:read "a"); f:close()
X
scenario train <<'X'
local dir = os.getenv "SD_DIR" .. "/run"
local m = new{preset = "nano", n_layer = 1, seed = 1, tokenizer = "data/interim-sd/tokenizer.json"}
local n = train(m, {text = ("A plain sentence to learn from. "):rep(9), steps = 2, batch = 1, ctx = 8,
    seed = 1, dir = dir, measure_every = 2, measure_draws = 1, draw = false})
print(n, nll(n, {1, 2, 3, 4}))
X
export SD_GALLERY="$b/tests/gallery"

base=0 points=0
for name in start open encode heads probe plugin truncate save train; do
    mkdir "$tmp/$name.ref"
    SD_DIR=$tmp/$name.ref LD_PRELOAD=$lib SD_FAIL_COUNT=$tmp/$name.count \
        "$sd" -q --threads 1 "$tmp/$name.lua" > "$tmp/$name.out" 2> "$tmp/$name.err" < /dev/null || {
        echo "FAILED: $name does not run undisturbed: $(head -c 300 "$tmp/$name.err")"
        echo "0 passed, 1 failed"
        exit 1
    }
    total=$(cut -d' ' -f1 "$tmp/$name.count")
    # name N K: from just before the start-up's end to just beyond the last allocation
    awk -v name="$name" -v lo="$((base > 20 ? base - 20 : 1))" -v hi="$((total + 2))" -v all="$all" '
        BEGIN {
            step = (hi - lo) / 60
            if (all == "all" || step < 1) step = 1
            for (x = lo; x <= hi; x += step) {
                n = int(x)
                print name, n, (++i % 3 == 0 ? -1 : 1)
                if (all == "all" && i % 3 == 0) print name, n, 1
            }
            # the last ones, where results are written
            for (n = hi - 12; step > 1 && n <= hi; n++) print name, n, 1
        }' | sort -u -k2,2n -k3,3 >> "$tmp/points"
    [ "$name" != start ] || base=$total
done
points=$(wc -l < "$tmp/points")
xargs -P 2 -n 3 sh "$0" --point < "$tmp/points" > "$tmp/failures"
sort "$tmp/failures" | head -n 40
f=$(wc -l < "$tmp/failures")
beyond=$(wc -l 2>/dev/null < "$tmp/beyond" || echo 0)
echo "allocations: $points points over 9 scenarios, start-up $base, $beyond beyond the last"
if [ "$beyond" -gt $((points / 10)) ]; then
    echo "FAILED: too few points failed an allocation"
    f=$((f + 1))
fi
echo "$((points - f)) passed, $f failed"
[ "$f" -eq 0 ]
