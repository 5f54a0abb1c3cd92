#!/bin/sh
# run.sh: speed, as one table of medians, with the peers' figures and the ratio beside ours.
#   tests/bench/run.sh BUILD [PEERS_PYTHON]
# BENCH=heads,start,open,tokenizer,train,decode   parts (all by default)
# ROUNDS=5   repetitions of everything, ours and the peers' in turns; THREADS=2 for training
# TEXT=FILE  the text of the tokenizer part (default: the corpus of scripts/corpus.sh when it is built,
#            else documentation and headers found on this machine)
# Without the peers' Python, our own figures alone. The machine should be otherwise idle.
set -u
b=${1:-build} py=${2:-}
parts=,${BENCH:-heads,start,open,tokenizer,train,decode},
rounds=${ROUNDS:-5} threads=${THREADS:-2}
here=$(dirname "$0")
work=$b/bench/work
log=$work/log.txt
mkdir -p "$work"
: > "$log"
[ -n "$py" ] && [ -x "$py" ] || py=
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS OMP_NUM_THREADS
export LC_ALL=C.UTF-8 XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config"
failed=0
want() { case $parts in *,$1,*) return 0 ;; esac; return 1; }
run() { # runs and keeps; what is no figure is shown as it comes
    "$@" > "$work/out.txt" 2> "$work/err.txt" || {
        failed=1
        echo "failed: $*" >&2
        tail -n 5 "$work/err.txt" >&2
    }
    cat "$work/out.txt" >> "$log"
    grep -v '^BENCH ' "$work/out.txt" | sed 's/^/    /'
}

echo "bench: $("$b/sd" --version | head -n 1); $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)," \
    "$(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg); $rounds rounds, medians"
if want heads; then
    if [ -n "$py" ]; then run "$py" "$here/peer_heads.py" "$b/bench/bench_heads" "$rounds"
    else run "$b/bench/bench_heads" 0 "$rounds"; fi
fi
if want start; then
    run "$b/bench/bench_start" $((rounds * 5)) prompt start.prompt_ms "$b/sd"
    run "$b/bench/bench_start" $((rounds * 5)) exit start.batch_ms "$b/sd" -e 'return 1'
fi
if want open; then
    run "$b/bench/bench_open" "$work/gpt2-f32" $((rounds * 3)) keep
    run "$b/bench/bench_start" $((rounds * 3)) exit open.program_ms "$b/sd" -e "m = open '$work/gpt2-f32'"
    rm -rf "$work/gpt2-f32"
fi
if want tokenizer; then
    text=${TEXT:-}
    if [ -z "$text" ] && [ -s build/corpus/corpus.txt ]; then text=build/corpus/corpus.txt; fi
    if [ -z "$text" ]; then
        text=$work/found.txt
        find data/introduction.txt /usr/share/doc /usr/share/common-licenses /usr/share/perl /usr/include \
            -type f \( -name '*.txt' -o -name copyright -o -name '*GPL*' -o -name '*.pod' -o -name '*.html' \
            -o -name '*.h' \) -size -400k 2> /dev/null | LC_ALL=C sort | head -n 4000 |
            tr '\n' '\0' | xargs -0 cat | iconv -c -f UTF-8 -t UTF-8 | head -c 10000000 > "$text"
    fi
    echo "    tokenizer text: $text, $(wc -c < "$text") bytes"
    if [ -n "$py" ]; then run "$py" "$here/peer_tokenizer.py" "$b/bench/bench_tokenizer" "$text" "$work/tok" "$rounds"
    else
        run "$b/bench/bench_tokenizer" data/interim-sd "$text" "$rounds"
    fi
    run "$b/bench/bench_tokenizer" data/interim-sd "$text" 1 train
fi
if want train; then
    if [ -n "$py" ]; then run "$py" "$here/peer_train.py" "$b/bench/bench_train" "$threads" "$rounds"
    else
        i=0
        while [ $i -lt "$rounds" ]; do
            run "$b/bench/bench_train" "$threads" 6
            i=$((i + 1))
        done
    fi
fi
if want decode; then
    if [ -n "$py" ]; then run "$py" "$here/peer_decode.py" "$b/bench/bench_decode" "$threads" "$rounds"
    else run "$b/bench/bench_decode" "$threads"; fi
fi

# The table: median of each name; a peer with several ways counts by its best.
awk -v threads="$threads" '
$1 == "BENCH" { n[$2]++; v[$2, n[$2]] = $3 + 0 }
function med(k,    i, j, t, m) {
    m = n[k]
    if (!m) return -1
    for (i = 2; i <= m; i++)
        for (j = i; j > 1 && v[k, j] < v[k, j - 1]; j--) { t = v[k, j]; v[k, j] = v[k, j - 1]; v[k, j - 1] = t }
    return m % 2 ? v[k, (m + 1) / 2] : (v[k, m / 2] + v[k, m / 2 + 1]) / 2
}
function lo(a, b) { return a < 0 ? b : b < 0 ? a : a < b ? a : b }
function hi(a, b) { return a > b ? a : b }
function num(x) { return x >= 100 ? sprintf("%.0f", x) : x >= 10 ? sprintf("%.1f", x) : sprintf("%.2f", x) }
# ours and theirs in one unit; ratio > 1: ours is better. aim: text and whether it holds.
function row(what, unit, ours, theirs, ratio, aim, ok) {
    if (ours < 0) return
    printf "| %-52s | %11s | %11s | %6s | %-22s |\n", what, num(ours) " " unit,
        theirs < 0 ? "" : num(theirs) " " unit, ratio < 0 ? "" : num(ratio) "x",
        aim == "" ? "" : aim (ok ? ": met" : ": missed")
}
END {
    printf "\n| %-52s | %-11s | %-11s | %-6s | %-22s |\n", "what", "sd", "peer", "ratio", "aim"
    print "|---|---:|---:|---:|---|"
    h = med("heads.sd_s")
    if (h > 0) {
        row("1,776 heads, weight level (all columns)", "s", h, -1, -1, "< 6 s", h < 6)
        row("  the same with the Gaussian nulls", "s", h + med("heads.null_s"), -1, -1, "", 0)
        for (k in n) {
            if (k ~ /^heads.numpy_dense_/) d = d == "" ? med(k) : lo(d, med(k))
            if (k ~ /^heads.numpy_reduced_/) r = r == "" ? med(k) : lo(r, med(k))
        }
        if (d != "") row("  NumPy dense DxD, best thread count", "s", h, d, d / h, "> 300x", d / h > 300)
        if (r != "") row("  NumPy, same 2dx2d reduction, best thread count", "s", h, r, r / h, "> 6x", r / h > 6)
    }
    s = med("start.prompt_ms")
    row("start to prompt", "ms", s, -1, -1, "< 50 ms", s < 50)
    row("start, evaluate, end", "ms", med("start.batch_ms"), -1, -1, "", 0)
    o = med("open.sd_ms")
    row("open a 548 MB safetensors model", "ms", o, -1, -1, "< 100 ms", o < 100)
    row("  whole program: start, open, end", "ms", med("open.program_ms"), -1, -1, "", 0)
    if (o >= 0) {
        q = med("open.read_bytes") / 1e3; hb = med("open.header_bytes") / 1e3
        row("  read, against the header (and the config)", "kB", q, hb, -1, "header only", q < hb + 16)
        row("  of the file in the page cache after", "kB", med("open.cached_bytes") / 1e3, -1, -1, "", 0)
    }
    m = split("bundled gpt2 smollm2 minilm", tok, " ")
    for (i = 1; i <= m; i++) {
        p = "tok." tok[i] "."
        t = med(p "sd_mbs"); g = hi(med(p "call_mbs"), med(p "lines_mbs"))
        if (t > 0) row("tokenizer, 10 MB, " tok[i] " vocabulary", "MB/s", t, g, t / g, ">= 1x", t >= g)
    }
    if (!n["tok.bundled.sd_mbs"]) row("tokenizer, 10 MB, bundled vocabulary", "MB/s", med("tok.sd_mbs"), -1, -1, "", 0)
    row("  training a vocabulary of 8,192 on the text", "s", med("tok.train_s"), -1, -1, "", 0)
    t = med("train.sd_ms"); fb = med("train.sd_fb_ms"); gf = med("train.flops")
    e = lo(med("train.eager_plain_ms"), med("train.eager_sdpa_ms"))
    c = lo(med("train.compile_plain_ms"), med("train.compile_sdpa_ms"))
    e2 = lo(med("train.eager_plain_fb_ms"), med("train.eager_sdpa_fb_ms"))
    c2 = lo(med("train.compile_plain_fb_ms"), med("train.compile_sdpa_fb_ms"))
    if (t > 0) {
        row("training step, " threads " threads", "ms", t, -1, -1, "", 0)
        if (e > 0) row("  PyTorch eager (its better attention)", "ms", t, e, e / t, ">= 1.4x", e / t >= 1.4)
        if (c > 0) row("  torch.compile (its better attention)", "ms", t, c, c / t, ">= 1.2x", c / t >= 1.2)
        row("  forward + loss + backward alone", "ms", fb, -1, -1, "", 0)
        if (e2 > 0) row("    PyTorch eager", "ms", fb, e2, e2 / fb, "", 0)
        if (c2 > 0) row("    torch.compile", "ms", fb, c2, c2 / fb, "", 0)
        row("  tokens a second", "", 2048 / t * 1e3, e > 0 ? 2048 / e * 1e3 : -1, -1, "", 0)
        row("  sgemm 2048^3 in the same run", "GF/s", med("train.sgemm"), -1, -1, "", 0)
        s = 100 * med("train.share"); f2 = 100 * med("train.fb_share")
        row("  model FLOPs, share of sgemm (step)", "%", s, e > 0 ? 1e5 * gf / e / med("train.sgemm") : -1, -1, ">= 75%", s >= 75)
        row("  model FLOPs, share of sgemm (fwd + bwd)", "%", f2, e2 > 0 ? 1e5 * gf / e2 / med("train.sgemm") : -1, -1, "", 0)
    }
    t = med("decode.softmax_ms"); e = lo(med("decode.peer_sdpa_ms"), med("decode.peer_eager_ms"))
    if (t > 0) {
        row("a token of GPT-2 small after 1,024, " threads " threads", "ms", t, e, e > 0 ? e / t : -1, e > 0 ? ">= 1.5x" : "", e >= 1.5 * t)
        row("  the 1,024 tokens before it", "s", med("decode.softmax_fill_s"), lo(med("decode.peer_sdpa_fill_s"), med("decode.peer_eager_fill_s")), -1, "", 0)
        k = split("sd elu1 uniform", kind, " ")
        for (i = 1; i <= k; i++) row("  kind " kind[i], "ms", med("decode." kind[i] "_ms"), -1, -1, "", 0)
        for (i = 2; i <= k; i++) {
            f = med("decode." kind[i] "_double_ms") / med("decode." kind[i] "_ms")
            row("  kind " kind[i] ", after 2,048 against 1,024", "x", f, -1, -1, "flat (< 1.15)", f < 1.15)
        }
    }
}' "$log"
[ -n "$py" ] || echo "(no peers: make peers, or make bench PEERS=PYTHON with numpy, torch, tokenizers there)"
exit $failed
