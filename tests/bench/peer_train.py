"""PyTorch on the model of bench_train.c: forward, loss, backward; eager and torch.compile.
Usage: peer_train.py [threads] [seconds] [eager|compile|both]"""
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


def run(name, model, fn, seconds):
    ids, targets = torch.randint(V, (B, T)), torch.randint(V, (B, T))
    best, total, k = 1e30, 0.0, 0
    while k < 3 or total < seconds:
        t = time.perf_counter()
        model.zero_grad(set_to_none=True)
        loss = fn(ids, targets)
        loss.backward()
        t = time.perf_counter() - t
        if k > 0:
            best, total = min(best, t), total + t
        k += 1
    print(f"torch {torch.__version__} {name}: loss {loss.item():.4f}; step {best * 1e3:.1f} ms, "
          f"{B * T / best:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 8
    which = sys.argv[3] if len(sys.argv) > 3 else "both"
    torch.manual_seed(0)
    for label, block in (("plain", Block), ("sdpa", SdpaBlock)):
        m = Model(block)
        if which in ("eager", "both"):
            run(f"eager, {label}", m, m, seconds)
        if which in ("compile", "both"):
            run(f"compile, {label}", m, torch.compile(m), seconds)
