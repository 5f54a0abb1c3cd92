#!/bin/sh
# batch.sh: the program in scripts and pipes: exit codes, output, locale (SHELL §3, CASES R).
set -u
sd=${SD_PROGRAM:?}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
pass=0 fail=0
unset COLUMNS
export XDG_CONFIG_HOME="$tmp" XDG_STATE_HOME="$tmp"

ok() { pass=$((pass + 1)); }
bad() { fail=$((fail + 1)); echo "FAILED: $*"; }
# is NAME EXPECTED GOT
is() { if [ "$2" = "$3" ]; then ok; else bad "$1: expected [$2], got [$3]"; fi; }
has() { case $3 in *"$2"*) ok ;; *) bad "$1: expected [$2] in [$3]" ;; esac; }
code() { # NAME EXPECTED COMMAND...
    name=$1 want=$2
    shift 2
    "$@" > "$tmp/out" 2> "$tmp/err" < /dev/null
    got=$?
    [ "$got" -eq "$want" ] && ok || bad "$name: expected exit $want, got $got: $(head -c 300 "$tmp/err")"
}

# figures without any locale, as in a bare container
code "figure in the C locale" 0 env -u LANG -u LC_CTYPE LC_ALL=C "$sd" -q -e \
    "plot.heads(heads(open 'data/interim-sd', {draws=0}), {file='$tmp/c.png'})"

# little address space: fewer threads, or a refusal; never a hang
for kb in 100000 200000 400000 1000000; do
    (ulimit -v $kb && exec timeout -s KILL 30 "$sd" -e 'print(matmul(rand(200, 200), rand(200, 200)).n)' > "$tmp/out" 2> "$tmp/err")
    got=$?
    [ -n "${SD_SANITIZED:-}" ] && continue # which maps terabytes of its own
    case $got,$(cat "$tmp/out") in
    0,40000) ok ;;
    1,) has "$kb KB of address space" "address space" "$(cat "$tmp/err")" ;;
    *) bad "$kb KB of address space: exit $got: $(head -c 300 "$tmp/err")" ;;
    esac
done
# a runaway recursion ends at once, with a short traceback
code "runaway recursion" 1 timeout -s KILL 5 "$sd" -e 'function f() return f() + 1 end f()'
is "its traceback is trimmed" "yes" "$([ "$(wc -l < "$tmp/err")" -le 16 ] && echo yes)"
has "and says so" "more" "$(tail -n 1 "$tmp/err")"

# values
is "expression" 2 "$("$sd" -e '1+1')"
is "statement, then value" 5 "$("$sd" -e 'x=5' -e x)"
is "return" 3 "$("$sd" -e 'return 3')"
is "muted" "" "$("$sd" -e '1+1;')"
is "several values" "1
2" "$("$sd" -e '1,2')"
is "nan" nan "$("$sd" -e '0/0')"
is "json number" 0.1 "$("$sd" --json -e 0.1)"
is "json nan" null "$("$sd" --json -e '0/0')"
is "json table" '{"a":[1,2]}' "$("$sd" --json -e '{a={1,2}}')"
is "json tensor" '[[1,2],[3,4]]' "$("$sd" --json -e 'tensor{{1,2},{3,4}}')"
is "json rows" '[{' "$("$sd" -q --json -e 'return heads(open "data/interim-sd", {draws=2})' | head -c 2)"
is "piped expression" 2 "$(echo '1+1' | "$sd")"
is "piped statement" "" "$(echo 'x=1' | "$sd")"
is "piped script" "a
b" "$(printf 'print "a"\nprint "b"\n' | "$sd")"
is "piped: no prompt, no colour, no return" "" "$(printf 'print(1)\n' | "$sd" 2>&1 | tr -d '1\n')"
is "stops at the first error" "1" "$(printf 'print(1)\nerror "x"\nprint(2)\n' | "$sd" 2>/dev/null)"
is "one character" 7 "$(printf 7 | "$sd")"
is "a line of 1 MB" 1000000 "$(awk 'BEGIN { printf "#\""; for (i = 0; i < 100000; i++) printf "abcdefghij"; print "\"" }' | "$sd")"
is "and at the prompt" "sd> 1000000" "$(awk 'BEGIN { printf "#\""; for (i = 0; i < 100000; i++) printf "abcdefghij"; print "\"" }' | "$sd" -q -i | head -n 1)"
is "dash" 4 "$(echo 'print(4)' | "$sd" -)"

# scripts
printf '#!/usr/bin/env sd\nprint(#arg, arg[1], ...)\n' > "$tmp/a.lua"
is "script arguments" "2	x	x	y" "$("$sd" "$tmp/a.lua" x y)"
ln -s "$sd" "$tmp/program" # no space in its path
printf '#!%s\nprint("shebang", ...)\n' "$tmp/program" > "$tmp/b.lua"
chmod +x "$tmp/b.lua"
is "shebang" "shebang	1" "$("$tmp/b.lua" 1)"
is "options after the script are its own" "--json" "$(printf 'print(...)' > "$tmp/c.lua"; "$sd" "$tmp/c.lua" --json)"
is "double dash" "1" "$("$sd" -- "$tmp/a.lua" q | cut -f1)"
is "-i after -e" "3
sd> 4
sd> " "$(echo 4 | "$sd" -q -i -e 3; echo)"
printf '#\nprint(debug.getinfo(1).currentline)' > "$tmp/e.lua"
is "a lone # line counts as a line" 2 "$("$sd" "$tmp/e.lua")"
mkfifo "$tmp/fifo"
echo 'print "from a pipe"' > "$tmp/fifo" &
is "a script from a pipe" "from a pipe" "$("$sd" "$tmp/fifo")"
code "a folder is no script" 3 "$sd" "$tmp"
printf 'local function f() error "deep" end\nf()\n' > "$tmp/d.lua"
code "error in script" 1 "$sd" "$tmp/d.lua"
has "error names file and line" "d.lua:1: deep" "$(cat "$tmp/err")"
has "traceback of the user's frames" "in f, " "$(cat "$tmp/err")"
case $(cat "$tmp/err") in *"[C]"* | *"=[sd]"*) bad "traceback shows our frames" ;; *) ok ;; esac

# exit codes
code "ok" 0 "$sd" -e 1
code "error" 1 "$sd" -e 'error "x"'
code "syntax" 1 "$sd" -e 'x = = 1'
code "lone end" 1 "$sd" -e 'end'
code "unknown option" 2 "$sd" --nonsense
code "missing value" 2 "$sd" -e
code "bad threads" 2 "$sd" --threads many
code "missing script" 3 "$sd" "$tmp/no-such-script.lua"
code "missing model" 3 "$sd" -e 'open "no-such-folder"'
mkdir "$tmp/m"
echo '{"model_type":"gpt2"' > "$tmp/m/config.json"
code "broken model" 3 "$sd" -e "open '$tmp/m'"
code "caught is no failure" 0 "$sd" -e 'pcall(open, "no-such-folder")'
code "caught and raised again" 3 "$sd" -e 'local ok, e = pcall(open, "no-such-folder") error(e, 0)'
code "another error later" 1 "$sd" -e 'pcall(open, "no-such-folder") error "other"'
code "numeric" 4 "$sd" -e 'svd{{1, 0/0}, {0, 1}}'
code "not written" 6 "$sd" -e 'heads(open "data/interim-sd", {draws=1}):csv "/no-such-dir/x.csv"'
code "os.exit" 9 "$sd" -e 'os.exit(9)'
code "quit" 4 "$sd" -e 'quit(4)'
if [ -w /dev/full ]; then
    "$sd" -e '1+1' > /dev/full 2> "$tmp/err"
    is "/dev/full" 6 $?
    has "/dev/full says so" "No space left" "$(cat "$tmp/err")"
    "$sd" -e 'print(1) os.exit(0)' > /dev/full 2>/dev/null
    is "/dev/full and os.exit" 6 $?
fi
mkdir "$tmp/empty"
code "gnuplot missing" 5 env PATH="$tmp/empty" "$sd" -q -e "plot.rank(heads(open 'data/interim-sd', {draws=1}), {file='$tmp/f.png'})"
has "gnuplot missing says what to install" gnuplot "$(cat "$tmp/err")"
"$sd" -e 'while true do end' 2> /dev/null &
p=$!
sleep 0.5
kill -INT $p
wait $p
is "interrupted" 130 $?

# quiet in a pipe
"$sd" -e 'for i = 1, 1e5 do print(i) end' 2> "$tmp/err" | head -n 1 > "$tmp/out"
is "head gets its line" 1 "$(cat "$tmp/out")"
is "and nothing is said" "" "$(cat "$tmp/err")"
timeout 10 "$sd" -e 'while true do io.write "x\n" end' 2> "$tmp/err" | head -n 1 > "$tmp/out"
is "an endless writer ends with its reader" "" "$(cat "$tmp/err")"

# settings
is "threads" 1 "$("$sd" --threads 1 -e 'threads()')"
is "threads=" 2 "$("$sd" --threads=2 -e 'threads()')"
is "seed" 42 "$("$sd" --seed 42 -e 'seed()')"
is "seed makes the same numbers" "$("$sd" --seed 3 -e 'randn(4):sum()')" "$("$sd" --seed 3 -e 'randn(4):sum()')"
is "no plugins" 0 "$("$sd" --no-plugins -e '#plugin.list()')"
has "version" "sd " "$("$sd" --version)"
has "help" "usage: sd" "$("$sd" --help)"
has "man page" ".TH SD 1" "$("$sd" --help-man)"
echo 'started = "yes"' > "$tmp/init.lua"
mkdir -p "$tmp/sd" && mv "$tmp/init.lua" "$tmp/sd/"
is "start-up file is not for scripts" nil "$("$sd" -e 'started')"
has "start-up file is for the prompt" yes "$(echo started | "$sd" -q -i)"
has "require" true "$("$sd" -e 'require "sd" == sd')"
is "no relative module path" "nil" "$("$sd" -e 'package.path:match "%f[.]%./"')"
is "Lua's names are not shadowed" "true" "$("$sd" -e 'table.insert and print and load and next and true')"
is "globals hold only the user's" "y" "$("$sd" -e 'y = 1' -e 'for k in pairs(_G) do if k ~= "_G" then print(k) end end')"

# locale: only LC_CTYPE
for l in de_DE.UTF-8 de_DE.utf8 C.UTF-8; do
    is "locale $l" "0.5	1.5" "$(LC_ALL=$l "$sd" -e 'print(0.5, tonumber "1.5")')"
done
if locale -a 2>/dev/null | grep -qi '^de_DE'; then
    a=$(LC_ALL=de_DE.UTF-8 "$sd" -q -e 'heads(open "data/interim-sd", {draws=2}):csv()' | cksum)
    is "same bytes under a comma locale" "$(LC_ALL=C "$sd" -q -e 'heads(open "data/interim-sd", {draws=2}):csv()' | cksum)" "$a"
fi

# memory: dead tensors do not pile up (CASES R06)
is "memory stays bounded" true "$("$sd" -e 'for i = 1, 2000 do local t = sd.tensor(1000, 1000) end' -e 'memory().peak_rss < 900 * 2^20')"
is "computing models stay bounded" true "$("$sd" -e 'm = open "data/interim-gpt2" for i = 1, 40 do nll(scale_head(m, {layer=0, head=0}), ids{1, 2, 3}) end' -e 'memory().peak_rss < 600 * 2^20')"
is "models do not run out of files" ok "$(ulimit -n 100; "$sd" -e 'for i = 1, 300 do local m = open "data/interim-gpt2" end' -e '"ok"')"
is "a view keeps its parent" 5.0 "$("$sd" -e 'local a = ones(1000, 1000) * 5 local v = a[3] a = nil collectgarbage() collectgarbage() print(v[7])')"

# names from strangers reach the terminal without their control bytes; a missing script says why
is "escape bytes in errors" 0 "$("$sd" -e 'open "a\27[31mb"' 2>&1 | grep -c "$(printf '\033')")"
has "escape bytes are shown" 'a\x1b[31mb' "$("$sd" -e 'open "a\27[31mb"' 2>&1)"
has "missing script" "No such file" "$("$sd" "$tmp/nosuch.lua" 2>&1)"

echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ]
