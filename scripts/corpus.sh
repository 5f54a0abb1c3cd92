#!/bin/sh
# corpus.sh: builds a real English corpus from Debian's documentation packages.
#
#   scripts/corpus.sh [OUTDIR]        default: build/corpus
#
# Leaves OUTDIR/corpus.txt: paragraphs of prose, one a line, a line `<|endoftext|>` between
# documents (one document = one page of a manual). Code, tables and repeated paragraphs are dropped.
# Nothing is installed: packages are downloaded and unpacked under OUTDIR/packages. The text keeps
# the licences of its packages and is not part of this project.
set -eu
out=${1:-build/corpus}
here=$(cd "$(dirname "$0")" && pwd)
packages="linux-doc-6.1 python3.11-doc postgresql-doc-15 sqlite3-doc anarchism git-doc
python-django-doc libreoffice-help-en-us gimp-help-en octave-doc debian-policy
developers-reference debian-reference-en debian-handbook maint-guide installation-guide-amd64
apache2-doc exim4-doc-html bash-doc zsh-doc maxima-doc gnuplot-doc asymptote-doc mercurial-common
python-pandas-doc python-scipy-doc python-matplotlib-doc ghc-doc erlang-doc r-doc-html
openjdk-17-doc libboost1.81-doc llvm-14-doc clang-14-doc cmake-doc nginx-doc rust-doc"
command -v lua5.4 >/dev/null || { echo "corpus.sh: lua5.4 is missing (apt-get install lua5.4)" >&2; exit 5; }
mkdir -p "$out/packages" "$out/tree"
out=$(cd "$out" && pwd)
for p in $packages; do
    [ -e "$out/tree/$p" ] && continue
    deb=$(find "$out/packages" -name "${p}_*.deb" | head -n 1)
    if [ -z "$deb" ]; then
        if ! (cd "$out/packages" && apt-get download "$p" >/dev/null 2>&1); then
            echo "corpus.sh: $p is not to be had, left out" >&2
            continue
        fi
        deb=$(find "$out/packages" -name "${p}_*.deb" | head -n 1)
        [ -n "$deb" ] || continue
    fi
    mkdir -p "$out/tree/$p.part"
    dpkg-deb -x "$deb" "$out/tree/$p.part"
    mv "$out/tree/$p.part" "$out/tree/$p"
done
find "$out/tree" -type f \( -name '*.html' -o -name '*.htm' -o -name '*.html.gz' -o -name '*.xhtml' \) |
    LC_ALL=C sort > "$out/files.txt"
lua5.4 "$here/corpus.lua" "$out/files.txt" "$out/corpus.txt.part"
mv "$out/corpus.txt.part" "$out/corpus.txt"
ls -l "$out/corpus.txt"
