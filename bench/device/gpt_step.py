"""Time and memory of a GPT's training steps on one GPU by PyTorch, for comparison with gpt_step.cc.

python3 gpt_step.py DTYPE [LAYERS WIDTH ROWS TOKENS]
"""
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WARM_UP, MEASURED = 3, 10


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        rows, tokens, width = x.shape
        q, k, v = (one.view(rows, tokens, self.heads, -1).transpose(1, 2) for one in self.c_attn(x).split(width, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(rows, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="none"))


class Gpt(nn.Module):
    def __init__(self, layers, width, tokens, vocabulary=50304):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.h = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main():
    words = sys.argv[1:]
    dtype = torch.bfloat16 if words and words[0] == "bf16" else torch.float32
    layers, width, rows, tokens = (int(word) for word in words[1:5]) if len(words) > 4 else (12, 768, 8, 512)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Gpt(layers, width, tokens).to("cuda:0", dtype))
    adamw = torch.optim.AdamW(model.parameters(), 3e-4)
    numbers = (torch.arange(rows * (tokens + 1)) * 7919 % 50257).view(rows, tokens + 1).cuda()
    times = []
    for step in range(WARM_UP + MEASURED):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        adamw.zero_grad()
        loss = model(numbers[:, :-1], numbers[:, 1:])
        loss.backward()
        adamw.step()
        torch.cuda.synchronize()
        if step >= WARM_UP:
            times.append((time.perf_counter() - begin) * 1e3)
    times.sort()
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"PyTorch DDP {words[0] if words else 'float32'}: {times[len(times) // 2]:.1f} ms "
          f"({times[0]:.1f} to {times[-1]:.1f}), peak {peak:.2f} GiB, loss {loss.item():.4f}")
    torch.distributed.destroy_process_group()


main()
