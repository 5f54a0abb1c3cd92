"""transformers on the shape of bench_decode.c (GPT-2 small, random weights, f32), in turns with it: the
median time of a greedy token with its key/value cache, once CTX tokens are in.

    peer_decode.py BENCH_DECODE [THREADS] [ROUNDS] [TOKENS] [CTX]

Prints `BENCH name value`."""
import statistics
import subprocess
import sys
import time

import torch
import transformers as tf


def measure(model, ids, tokens):
    times = []
    with torch.inference_mode():
        t = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        fill = time.perf_counter() - t
        for _ in range(tokens):
            t = time.perf_counter()
            nxt = out.logits[:, -1:].argmax(-1)
            out = model(nxt, past_key_values=out.past_key_values, use_cache=True)
            times.append(time.perf_counter() - t)
    return 1e3 * statistics.median(times), fill


def main():
    bench = sys.argv[1]
    threads, rounds, tokens, ctx = (int(sys.argv[i + 2]) if len(sys.argv) > i + 2 else d
                                    for i, d in enumerate((2, 3, 24, 1024)))
    torch.set_num_threads(threads)
    tf.logging.set_verbosity_error()
    models = {}
    for attn in ("sdpa", "eager"):
        cfg = tf.GPT2Config(n_positions=2 * ctx + tokens)
        cfg._attn_implementation = attn
        models[attn] = tf.GPT2LMHeadModel(cfg).eval()
    ids = torch.randint(50257, (1, ctx))
    for _ in range(rounds):
        print(subprocess.run([bench, str(threads), str(tokens), str(ctx)], check=True, capture_output=True,
                             text=True).stdout, end="", flush=True)
        for attn, model in models.items():
            ms, fill = measure(model, ids, tokens)
            print("BENCH decode.peer_%s_ms %.3f" % (attn, ms))
            print("BENCH decode.peer_%s_fill_s %.3f" % (attn, fill), flush=True)


main()
