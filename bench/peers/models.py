"""The two models of README.md. Each makes its own batches and knows its loss."""
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

    def batch(self):
        return torch.randn(self.rows, self.width), torch.randn(self.rows, self.width)

    @staticmethod
    def loss(output, target):
        return F.mse_loss(output, target)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        rows, tokens, width = x.shape
        heads = (part.view(rows, tokens, self.heads, -1).transpose(1, 2)
                 for part in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(rows, tokens, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self, layers=6, heads=6, width=384, block=256, vocabulary=65, rows=8):
        super().__init__()
        self.block, self.vocabulary, self.rows = block, vocabulary, rows
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tok.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))

    def batch(self):
        ids = torch.randint(self.vocabulary, (self.rows, self.block + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    @staticmethod
    def loss(logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


MODELS = {"mlp": Mlp, "gpt": Gpt}  # each takes width=, layers=
