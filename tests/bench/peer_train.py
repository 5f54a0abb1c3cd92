"""PyTorch on the model of bench_train.c, in turns with it: eager and torch.compile, each with attention
written out (plain) and through scaled_dot_product_attention (sdpa). A step is forward, loss, backward,
clipping and AdamW (fused); forward + loss + backward is timed beside it.

    peer_train.py BENCH_TRAIN [THREADS] [ROUNDS] [SECONDS]

Prints `BENCH name value`, the medians of each round in ms.
"""
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

L, D, H, V, T, B = 6, 256, 4, 8192, 256, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wqkv = nn.Linear(D, 3 * D, bias=False)
        self.wo = nn.Linear(D, D, bias=False)
        self.wd = nn.Linear(D, H)
        self.w1 = nn.Linear(D, 4 * D)
        self.w2 = nn.Linear(4 * D, D)

    def forward(self, x, mask, eye):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, H, D // H).transpose(1, 2) for t in self.wqkv(x).split(D, 2))
        d = F.softplus(self.wd(x)).transpose(1, 2) + 1e-4
        s = torch.cat([q, -k], -1) @ torch.cat([k, q], -1).transpose(-1, -2)
        s = s * (2 * D // H) ** -0.5
        s = torch.where(eye, -d.unsqueeze(-1), s) + mask
        o = torch.softmax(s, -1) @ v
        x = x + self.wo(o.transpose(1, 2).reshape(b, n, D))
        return x + self.w2(F.gelu(self.w1(x)))


class SdpaBlock(Block):
    """The same through scaled_dot_product_attention: the diagonal enters as an additive mask."""

    def forward(self, x, mask, eye):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, H, D // H).transpose(1, 2) for t in self.wqkv(x).split(D, 2))
        d = F.softplus(self.wd(x)).transpose(1, 2) + 1e-4
        bias = torch.where(eye, -d.unsqueeze(-1), mask)
        o = F.scaled_dot_product_attention(torch.cat([q, -k], -1), torch.cat([k, q], -1), v,
                                           attn_mask=bias, scale=(2 * D // H) ** -0.5)
        x = x + self.wo(o.transpose(1, 2).reshape(b, n, D))
        return x + self.w2(F.gelu(self.w1(x)))


class Model(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Embedding(T, D)
        self.blocks = nn.ModuleList(block() for _ in range(L))
        for p in self.parameters():
            nn.init.uniform_(p, -0.035, 0.035)
        self.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1))
        self.register_buffer("eye", torch.eye(T, dtype=torch.bool))

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos.weight
        for b in self.blocks:
            x = b(x, self.mask, self.eye)
        return F.cross_entropy((x @ self.tok.weight.T).view(-1, V), targets.view(-1))


class Runner:
    def __init__(self, name, block, compiled):
        torch.manual_seed(0)
        self.name, self.model = name, Model(block)
        self.fn = torch.compile(self.model) if compiled else self.model
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.data = torch.randint(V, (B, T)), torch.randint(V, (B, T))
        for _ in range(2):
            self.step()

    def step(self):
        t = time.perf_counter()
        self.model.zero_grad(set_to_none=True)
        loss = self.fn(*self.data)
        loss.backward()
        t1 = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.loss = loss.item()
        return time.perf_counter() - t, t1 - t

    def run(self, seconds):
        whole, part = [], []
        while len(whole) < 3 or sum(whole) < seconds:
            w, p = self.step()
            whole.append(w)
            part.append(p)
        print("BENCH train.%s_ms %.3f" % (self.name, 1e3 * statistics.median(whole)))
        print("BENCH train.%s_fb_ms %.3f" % (self.name, 1e3 * statistics.median(part)), flush=True)


def main():
    bench = sys.argv[1]
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 6
    torch.set_num_threads(threads)
    runners = []
    for kind, block in (("plain", Block), ("sdpa", SdpaBlock)):
        for mode in ("eager", "compile"):
            try:
                runners.append(Runner(mode + "_" + kind, block, mode == "compile"))
            except Exception as e:
                print("torch %s %s does not run here: %s" % (mode, kind, str(e).strip().split("\n")[0][:200]))
    for _ in range(rounds):
        print(subprocess.run([bench, str(threads), str(seconds)], check=True, capture_output=True,
                             text=True).stdout, end="", flush=True)
        for r in runners:
            r.run(seconds)
    print("torch %s: %s" % (torch.__version__, ", ".join("%s loss %.4f" % (r.name, r.loss) for r in runners)))


main()
