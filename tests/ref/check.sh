#!/bin/sh
# check.sh: every comparison that needs packages from PyPI; ends with "N passed, N failed".
#   tests/ref/check.sh BUILD PYTHON
# CHECK=containers,models,tokenizers,spectral,heads,linalg,refs chooses parts (all by default).
# Each part prints lines `ok …` and `FAILED …`; a part that stops early counts as one failure.
set -u
b=${1:-build} py=${2:-build/peers/bin/python}
parts=,${CHECK:-containers,models,tokenizers,spectral,heads,linalg,refs},
work=$b/check
mkdir -p "$work"
pass=0 fail=0
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
export LC_ALL=C.UTF-8 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1
if ! "$py" -c 'import numpy, scipy, torch, transformers, tokenizers, safetensors, gguf' 2> "$work/python.txt"; then
    echo "check: $py lacks a package (make peers installs all): $(tail -n 1 "$work/python.txt")" >&2
    exit 1
fi
part() { # name, command...
    name=$1
    shift
    case $parts in *,"$name",*) ;; *) return ;; esac
    echo "-- $name"
    "$@" > "$work/$name.log" 2> "$work/$name.err"
    status=$?
    grep -E '^(ok|FAILED|        )' "$work/$name.log" | cut -c1-220
    p=$(grep -c '^ok ' "$work/$name.log")
    f=$(grep -c '^FAILED ' "$work/$name.log")
    if [ "$f" -eq 0 ] && { [ $status -ne 0 ] || [ "$p" -eq 0 ]; }; then
        f=1
        echo "FAILED  $name: exit $status"
        tail -n 12 "$work/$name.err" | sed 's/^/        /'
    fi
    pass=$((pass + p)) fail=$((fail + f))
}
dump() {
    SD_TEST_DUMP=$work/linalg.bin "$b/tests/test_num" > "$work/test_num.txt" 2>&1 || return 1
    "$py" tests/ref/linalg.py "$b/sd" "$work/linalg.bin"
}
part containers "$py" tests/ref/containers.py "$b/tools/tensors"
part models "$py" tests/ref/check_models.py "$b/tools/run_model" "$work/models"
part tokenizers "$py" tests/ref/check_tokenizers.py "$b/tools/tok_cli" "$work/tokenizers"
part linalg dump
part spectral "$py" tests/ref/spectral_check.py "$b/tools/spectral_dump"
part heads "$py" tests/ref/check_heads.py "$b/sd"
part refs "$py" tests/ref/check_refs.py
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
