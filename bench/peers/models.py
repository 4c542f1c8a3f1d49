"""The two models of README.md, equal to models::Mlp and models::Gpt: the same parameters in the same order from the
same random numbers. Each makes its own batches and computes its loss.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mlp(nn.Module):
    def __init__(self, width=2048, layers=4, rows=32):
        super().__init__()
        self.width, self.rows = width, rows
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)

    def units(self):
        return self.layers

    def batch(self):
        return torch.randn(self.rows, self.width), torch.randn(self.rows, self.width)

    @staticmethod
    def loss(output, target):
        return F.mse_loss(output, target)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.length = width // heads  # per head
        self.by_head = False  # layout of c_attn's outputs: [3, heads, length], else [heads, 3, length]
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        rows, tokens = x.shape[:2]
        mixed = F.scaled_dot_product_attention(*self.heads(self.c_attn(x)), is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(rows, tokens, -1))

    def heads(self, outputs):
        rows, tokens, width = outputs.shape
        if self.by_head:
            parts = outputs.view(rows, tokens, -1, 3, self.length).unbind(3)
        else:
            parts = (part.view(rows, tokens, -1, self.length) for part in outputs.split(width // 3, dim=2))
        return [part.transpose(1, 2) for part in parts]

    def lay_by_head(self):
        """Reorders c_attn's outputs so that a range has the queries, keys and values of some heads, as
        parallelize_module needs. The results do not change.
        """
        self.by_head = True
        with torch.no_grad():
            for tensor in self.c_attn.parameters():
                tensor.copy_(tensor.unflatten(0, (3, -1, self.length)).transpose(0, 1).flatten(0, 2))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, layers=6, heads=6, width=384, block=256, vocabulary=65, rows=8):
        super().__init__()
        self.block, self.vocabulary, self.rows = block, vocabulary, rows
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                ends_in_residual = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if ends_in_residual else 0.02)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)

    def units(self):
        return self.h

    def batch(self):
        ids = torch.randint(self.vocabulary, (self.rows, self.block + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    @staticmethod
    def loss(logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


MODELS = {"mlp": Mlp, "gpt": Gpt}  # each takes width=, layers=
