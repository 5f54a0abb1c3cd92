#!/bin/sh
# deps.sh: installs the Debian packages that are missing, and says so. Root only where needed.
#   scripts/deps.sh build|test|lint ...
set -eu
build="gcc make pkg-config libc6-dev libopenblas-pthread-dev liblapacke-dev liblua5.4-dev lua5.4
libreadline-dev libpcre2-dev libjansson-dev libutf8proc-dev gnuplot-nox"
test="libcmocka-dev"
lint="clang clang-format cppcheck binutils"
check="libclang-rt-14-dev"
want=
for set in "${@:-build}"; do
    case $set in
    build) want="$want $build" ;;
    test) want="$want $test" ;;
    lint) want="$want $lint" ;;
    check) want="$want $check clang" ;;
    *) echo "deps.sh: unknown set '$set' (build, test, lint, check)" >&2; exit 2 ;;
    esac
done
command -v dpkg-query >/dev/null || {
    echo "deps.sh: not a Debian system; install by hand:$want" | tr '\n' ' ' >&2
    exit 0
}
missing=
for p in $want; do
    case $(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null) in
    ii*) ;;
    *) missing="$missing $p" ;;
    esac
done
[ -n "$missing" ] || exit 0
echo "sd: installing from Debian:$missing"
run=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "deps.sh: needs root to install; run: apt-get install$missing" >&2
        exit 5
    }
    run=sudo
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
$run apt-get install -y -q --no-install-recommends $missing >/dev/null 2>&1 || {
    $run apt-get update -q >/dev/null
    $run apt-get install -y -q --no-install-recommends $missing >/dev/null
}
