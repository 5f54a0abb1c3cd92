#!/bin/sh
# install.sh: `make install` into an empty folder, and the installed program away from the build tree.
#   sh tests/install.sh [BUILD]
set -u
b=${1:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
pass=0 fail=0
ok() { pass=$((pass + 1)); }
bad() { fail=$((fail + 1)); echo "FAILED: $*"; }
is() { if [ "$2" = "$3" ]; then ok; else bad "$1: expected [$2], got [$3]"; fi; }
has() { case $3 in *"$2"*) ok ;; *) bad "$1: expected [$2] in [$3]" ;; esac; }
# -o all: what is built is installed, nothing is built here
install() { make --no-print-directory -o all B="$b" install "$@" > "$tmp/log" 2>&1; }
# The installed program sees a bare environment, another folder and no build tree.
away() {
    prog=$1
    shift
    (cd / && env -i PATH=/usr/bin:/bin HOME="$tmp/home" LC_ALL=C.UTF-8 "$prog" -q "$@" 2>&1)
}
mkdir "$tmp/home"

if install PREFIX="$tmp/x" DESTDIR=; then ok; else bad "make install: $(cat "$tmp/log")"; fi
is "installed program" 2 "$(away "$tmp/x/bin/sd" -e 1+1)"
is "every plugin comes from the prefix" "true" "$(away "$tmp/x/bin/sd" -e "local n, own = 0, 0
for _, p in plugin.list():rows() do
    n = n + 1
    if p.path:find('$tmp/x/', 1, true) then own = own + 1 end
end
return n >= 2 and n == own")"
is "a plugin's operation works" "true" "$(away "$tmp/x/bin/sd" -e "local m = open '$PWD/tests/ref/models/gpt2'
return nll(truncate(m, {planes = 1}), {1, 2, 3, 4, 5}) > 0")"
is "header and scripts" "" "$(ls "$tmp/x/include/sd_plugin.h" "$tmp/x/share/sd/scripts/demo.lua" 2>&1 > "$tmp/null")"
installed=$(cd "$tmp/x" && find . -type f | sort)
for f in ./bin/sd ./include/sd_plugin.h ./lib/pkgconfig/sd.pc ./lib/sd/plugins/1/truncate.so; do
    has "file list" "$f" "$installed"
done
is "nothing points into the source tree" "" "$(grep -lF "$PWD/" "$tmp/x/lib/pkgconfig/sd.pc" "$tmp/x/include/sd_plugin.h")"

# A plugin is compiled from what is installed alone, and found in the user's folder.
flags=$(PKG_CONFIG_PATH="$tmp/x/lib/pkgconfig" pkg-config --cflags sd)
is "pkg-config" "-I$tmp/x/include" "$(echo $flags)"
dir=$(PKG_CONFIG_PATH="$tmp/x/lib/pkgconfig" pkg-config --variable=plugindir sd)
is "plugindir" "$tmp/x/lib/sd/plugins/1" "$dir"
mkdir -p "$tmp/own"
sed 's/"template"/"own"/; s/"scale_head"/"own_scale"/' plugins/template.c > "$tmp/own/own.c"
# shellcheck disable=SC2086
if ${CC:-cc} -std=c11 -fPIC -fvisibility=hidden -shared $flags "$tmp/own/own.c" -o "$tmp/own/own.so" -lm > "$tmp/log" 2>&1
then ok; else bad "compiling a plugin: $(cat "$tmp/log")"; fi
mkdir -p "$tmp/home/.local/share/sd/plugins/1"
cp "$tmp/own/own.so" "$tmp/home/.local/share/sd/plugins/1"
is "found in the user's folder" "true" "$(away "$tmp/x/bin/sd" -e 'own_scale ~= nil')"
sed 's/template_kind/own_kind/g; s/"decay"/"own_decay"/' plugins/template_kind.c > "$tmp/own/own_kind.c"
# shellcheck disable=SC2086
if ${CC:-cc} -std=c11 -O2 -fPIC -shared -fvisibility=hidden -Wl,-z,defs -Wall -Wextra -Werror $flags \
    "$tmp/own/own_kind.c" -o "$tmp/home/.local/share/sd/plugins/1/own_kind.so" -lm > "$tmp/log" 2>&1
then ok; else bad "compiling an attention kind: $(cat "$tmp/log")"; fi
is "its kind works" "true" "$(away "$tmp/x/bin/sd" -e "local m = new{preset = 'nano', kind = 'own_decay,sd', vocab = 50}
save(m, '$tmp/own/model')
return nll(open '$tmp/own/model', {1, 2, 3, 4, 5}) == nll(m, {1, 2, 3, 4, 5})")"
has "and is asked for by name" "attention kind 'own_decay' needs plugin own_kind 1.0, which is not loaded" \
    "$(away "$tmp/x/bin/sd" --no-plugins -e "open '$tmp/own/model'")"
for t in template:100 template_kind:120; do
    n=$(wc -l < "plugins/${t%:*}.c")
    if [ "$n" -lt "${t#*:}" ]; then ok; else bad "plugins/${t%:*}.c has $n lines, ${t#*:} are too many"; fi
done

# Another name, another root; moved afterwards.
if install PREFIX=/usr DESTDIR="$tmp/root" PROGRAM=sdq; then ok; else bad "DESTDIR: $(cat "$tmp/log")"; fi
is "PROGRAM= names it" "true" "$(away "$tmp/root/usr/bin/sdq" -e 'truncate ~= nil')"
is "and only so" "sdq" "$(ls "$tmp/root/usr/bin")"
has "prefix without DESTDIR" "prefix=/usr
" "$(cat "$tmp/root/usr/lib/pkgconfig/sd.pc")"
mv "$tmp/root/usr" "$tmp/elsewhere"
is "a moved tree still finds its plugins" "true" "$(away "$tmp/elsewhere/bin/sdq" -e 'truncate ~= nil')"

# Another program of the name on PATH is said.
mkdir "$tmp/path"
printf '#!/bin/sh\n' > "$tmp/path/sd"
chmod +x "$tmp/path/sd"
PATH="$tmp/path:$PATH" install PREFIX="$tmp/y" DESTDIR=
has "another sd on PATH" "another program named sd" "$(cat "$tmp/log")"
PATH="$tmp/path:$PATH" install PREFIX="$tmp/y" DESTDIR= PROGRAM=sdq
is "none of that name" "" "$(grep another "$tmp/log")"
PATH="$tmp/x/bin:/usr/bin:/bin" install PREFIX="$tmp/x" DESTDIR=
is "installing again over itself" "" "$(grep another "$tmp/log")"

echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ]
