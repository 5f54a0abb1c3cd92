#!/bin/sh
# lint.sh: the structural rules that a compiler does not check. Used by `make lint`.
set -u
bad=0
say() { echo "lint: $*"; bad=1; }
cd "$(dirname "$0")/.." || exit 2

# Layering: a file includes only its own folder and folders earlier in the list.
order="base num io nn spectral train host lua shell"
rank() { n=0; for x in $order; do n=$((n + 1)); [ "$x" = "$1" ] && { echo $n; return; }; done; echo 0; }
for dir in $order; do
    r=$(rank "$dir")
    for f in core/"$dir"/*.[ch]; do
        [ -e "$f" ] || continue
        for inc in $(sed -n 's/^ *# *include *"\([a-z_]*\)\/.*/\1/p' "$f" | sort -u); do
            case $inc in
            include) [ "$r" -ge "$(rank host)" ] || say "$f includes include/: only host and later may" ;;
            gen) ;;
            *)
                i=$(rank "$inc")
                [ "$i" -gt 0 ] && [ "$i" -le "$r" ] || say "$f includes \"$inc/…\": not below $dir/"
                ;;
            esac
        done
    done
done

# One door each.
only() { # pattern, allowed files regex, what
    grep -lE "$1" core/*/*.[ch] 2>/dev/null | grep -vE "$2" | while read -r f; do echo "lint: $f: $3"; done
}
doors=$(
    only '# *include *[<"](cblas|lapacke|openblas)' '^core/num/blas\.c$' 'only num/blas.c includes BLAS and LAPACKE'
    only '# *include *<dlfcn' '^core/host/plugin\.c$' 'only host/plugin.c includes dlfcn.h'
    only '# *include *[<"](lua|lauxlib|lualib)' '^core/(lua|shell)/' 'only lua/ and shell/ include Lua'
    only '# *include *<readline' '^core/shell/lineedit\.c$' 'only shell/lineedit.c includes readline'
    only '# *define *_GNU_SOURCE' '^core/base/os\.c$' 'only base/os.c defines _GNU_SOURCE'
    only '(^|[^a-z_])(abort|exit|longjmp) *\(' '^core/(shell|lua)/' 'the library never exits, aborts or longjmps'
    only '(^|[^a-z_.>])(printf|puts|putchar) *\(' '^core/(shell|lua)/' 'the library never prints to stdout'
)
[ -z "$doors" ] || { echo "$doors"; bad=1; }
for f in plugins/*.c; do
    inc=$(sed -n 's/^ *# *include *"\(.*\)"/\1/p' "$f" | grep -vx -e sd_plugin.h -e "${f##*/}")
    [ -z "$inc" ] || say "$f includes $inc: a plugin includes sd_plugin.h only"
done

# An attention kind is known by name in its own files and in attn.c alone: others ask its row.
kinds=$(sed -n 's/^    \.name = "\([a-z0-9_]*\)",$/\1/p' core/nn/attn_*.c | paste -sd'|' -)
named=$(grep -nE "str(n|case)?cmp *\([^;]*kind[^;]*\"($kinds)\"" core/*/*.[ch] plugins/*.c |
    grep -vE '^core/nn/attn[_a-z0-9]*\.c:|^core/spectral/(heads|probe)\.c:')
[ -z "$named" ] || { echo "$named" | sed 's/^/lint: an attention kind by its name: /'; bad=1; }
grep -nE -- '-(Ofast|ffast-math|funsafe-math)' Makefile && say "fast-math flags are banned"

# No writable globals but the cancellation flag; libsd exports only its own names. Tables that only
# the dynamic linker writes (.data.rel.ro) are read-only to the program. Beside libsd.a, the signal
# handler's state and readline's callbacks, which get no argument, have nowhere else to live.
b=${1:-build}
command -v nm >/dev/null && command -v objdump >/dev/null || { echo "lint: no binutils"; exit 5; }
if [ -e "$b/libsd.a" ]; then
    nm -A -g --defined-only "$b/libsd.a" 2>/dev/null | awk '{print $NF}' | grep -v '^sd_' | sort -u |
        while read -r s; do echo "lint: libsd.a exports $s: not an sd_ name"; done | grep . && bad=1
    for o in "$b/libsd.a" "$b"/core/lua/*.o "$b"/core/shell/*.o; do
        objdump -t "$o"
    done 2>/dev/null | awk '
        /file format/ { file = $1; sub(/:$/, "", file); sub(/.*\//, "", file) }
        {
            for (i = 2; i < NF; i++)
                if ($i ~ /^\.(data|bss|tdata|tbss|ldata|lbss)/ || $i == "*COM*") {
                    # a section has itself as symbol; a compiler names no object with a dot in front
                    if ($i !~ /^\.data\.rel\.ro/ && $NF !~ /^\./) print file ": " $NF
                    next
                }
        }' | grep -vE '^run\.o: sd_cancel_flag$|^(interrupt|lineedit)\.o: ' |
        sed 's/^/lint: writable global in /' | grep . && bad=1
else
    say "$b/libsd.a is not built"
fi
for so in "$b"/plugins/*.so; do
    [ -e "$so" ] || continue
    extra=$(nm -D --defined-only "$so" | awk '{print $NF}' | grep -vE '^sd_plugin$|^_(init|fini)$' | tr '\n' ' ')
    [ -z "$extra" ] || say "$so exports $extra: only sd_plugin may be"
done
exit $bad
