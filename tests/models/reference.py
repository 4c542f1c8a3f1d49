"""The models of src/models once more in Python, as the oracle of parity_test.cc.

reference.py MODEL OPTIONS IN OUT: builds the module, prints the names of its state_dict, and writes to OUT its own
initial weights ("own/NAME") with the output they give ("own_output"), and for the weights in IN ("state/NAME", loaded
strictly) output, loss and gradients ("output", "loss", "grad/NAME"). Both for the batch in IN ("input", "target").
The Llama is written from the papers (arXiv:2302.13971, 2104.09864, 2002.05202) with the hubs' names.
The Gpt is nanoGPT's (github.com/karpathy/nanoGPT, model.py), the ConvNet that of pytorch/examples, the ResNet18
torchvision's, written anew.
"""
import json
import math
import struct
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

TYPES = {"int64": torch.int64, "float32": torch.float32}


def read_tensors(path):
    with open(path, "rb") as file:
        heads = []
        while line := file.readline().decode().split():
            heads.append((line[0], TYPES[line[1]], [int(size) for size in line[2:]]))
        tensors = {}
        for name, dtype, sizes in heads:
            tensor = torch.empty(sizes, dtype=dtype)
            data = bytearray(file.read(tensor.numel() * tensor.element_size()))
            tensors[name] = torch.frombuffer(data, dtype=dtype).view(sizes) if data else tensor
        return tensors


def write_tensors(path, tensors):
    codes = {torch.int64: ("int64", "q"), torch.float32: ("float32", "f")}
    with open(path, "wb") as file:
        for name, tensor in tensors.items():
            file.write(" ".join([name, codes[tensor.dtype][0], *map(str, tensor.shape)]).encode() + b"\n")
        file.write(b"\n")
        for tensor in tensors.values():
            values = tensor.detach().reshape(-1).tolist()
            file.write(struct.pack(f"={len(values)}{codes[tensor.dtype][1]}", *values))


class Mlp(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, sizes[1:]))

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)

    def loss(self, x, target):
        return F.cross_entropy(self(x), target)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = F.dropout(F.relu(self.fc1(x.view(-1, 320))), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)

    def loss(self, x, target):
        return F.nll_loss(self(x), target)


class ResNetBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, classes, width, cifar_stem):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, *((3, 1, 1) if cifar_stem else (7, 2, 3)), bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if cifar_stem else nn.MaxPool2d(3, 2, 1)
        for stage in range(4):
            inputs, outputs = width * 2 ** max(0, stage - 1), width * 2 ** stage
            blocks = ResNetBlock(inputs, outputs, 1 if stage == 0 else 2), ResNetBlock(outputs, outputs, 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def loss(self, x, target):
        return F.cross_entropy(self(x), target)


class LayerNorm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)

    def forward(self, x):
        rows, tokens, width = x.shape
        q, k, v = (part.view(rows, tokens, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf)
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, tokens, width))


class FeedForward(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.ln_1, self.attn = LayerNorm(width, bias), Attention(width, heads, bias)
        self.ln_2, self.mlp = LayerNorm(width, bias), FeedForward(width, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Llama(nn.Module):
    class Attention(nn.Module):
        def __init__(self, width, heads, key_value_heads, head_width, bias, base, scaling):
            super().__init__()
            self.heads, self.key_value_heads, self.size = heads, key_value_heads, head_width
            self.base, self.scaling = base, scaling
            self.q_proj = nn.Linear(width, heads * head_width, bias=bias)
            self.k_proj = nn.Linear(width, key_value_heads * head_width, bias=bias)
            self.v_proj = nn.Linear(width, key_value_heads * head_width, bias=bias)
            self.o_proj = nn.Linear(heads * head_width, width, bias=bias)

        def frequency(self, pair):
            plain = self.base ** (-2 * pair / self.size)
            if not self.scaling:
                return plain
            factor, low, high, trained = self.scaling
            wave = 2 * math.pi / plain
            share = min(1, max(0, (trained / wave - low) / (high - low))) if high > low else 0
            return plain * (share + (1 - share) / factor)

        def turn(self, x):
            """Treats each pair of features as a complex number, and rotates it."""
            frequencies = [self.frequency(pair) for pair in range(self.size // 2)]
            angles = torch.tensor([[place * each for each in frequencies] for place in range(x.shape[2])])
            first, second = x.chunk(2, -1)
            turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
            return torch.cat((turned.real, turned.imag), -1)

        def forward(self, x):
            rows, tokens, _ = x.shape
            q = self.turn(self.q_proj(x).view(rows, tokens, self.heads, self.size).transpose(1, 2))
            k = self.turn(self.k_proj(x).view(rows, tokens, self.key_value_heads, self.size).transpose(1, 2))
            v = self.v_proj(x).view(rows, tokens, self.key_value_heads, self.size).transpose(1, 2)
            mixed = []
            for head in range(self.heads):
                group = head * self.key_value_heads // self.heads
                scores = q[:, head] @ k[:, group].transpose(-2, -1) / math.sqrt(self.size)
                scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf)
                mixed.append(scores.softmax(-1) @ v[:, group])
            return self.o_proj(torch.cat(mixed, -1))

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight

    class FeedForward(nn.Module):
        def __init__(self, width, hidden, bias):
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(width, hidden, bias=bias), nn.Linear(width, hidden, bias=bias)
            self.down_proj = nn.Linear(hidden, width, bias=bias)

        def forward(self, x):
            gate = self.gate_proj(x)
            return self.down_proj(gate * torch.sigmoid(gate) * self.up_proj(x))

    class Block(nn.Module):
        def __init__(self, width, hidden, bias, **attention):
            super().__init__()
            self.self_attn = Llama.Attention(width, bias=bias, **attention)
            self.mlp = Llama.FeedForward(width, hidden, bias)
            self.input_layernorm, self.post_attention_layernorm = Llama.Norm(width), Llama.Norm(width)

        def forward(self, x):
            x = x + self.self_attn(self.input_layernorm(x))
            return x + self.mlp(self.post_attention_layernorm(x))

    def __init__(self, layers, width, block, vocabulary, tied, **sizes):
        super().__init__()
        self.vocabulary, self.block = vocabulary, block
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocabulary, width)
        self.model.layers = nn.ModuleList(Llama.Block(width, **sizes) for _ in range(layers))
        self.model.norm = Llama.Norm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))

    def loss(self, ids, targets):
        return F.cross_entropy(self(ids).view(-1, self.vocabulary), targets.view(-1), ignore_index=-1)


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, block, vocabulary, bias):
        super().__init__()
        self.vocabulary, self.block = vocabulary, block
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocabulary, width), wpe=nn.Embedding(block, width), drop=nn.Dropout(0.0),
            h=nn.ModuleList(Block(width, heads, bias) for _ in range(layers)), ln_f=LayerNorm(width, bias)))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, ids):
        parts = self.transformer
        x = parts.drop(parts.wte(ids) + parts.wpe(torch.arange(ids.shape[1])))
        for block in parts.h:
            x = block(x)
        return self.lm_head(parts.ln_f(x))

    def loss(self, ids, targets):
        return F.cross_entropy(self(ids).view(-1, self.vocabulary), targets.view(-1), ignore_index=-1)

    @torch.no_grad()
    def generate(self, ids, count, temperature, top_k, seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count):
            logits = self(ids[:, -self.block:])[:, -1, :] / temperature
            smallest = torch.topk(logits, top_k).values[:, [-1]]
            logits[logits < smallest] = -math.inf
            ids = torch.cat((ids, torch.multinomial(logits.softmax(-1), 1, generator=generator)), 1)
        return ids


def main():
    name, options, source, target = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(20)
    given = read_tensors(source)
    models = {"Mlp": Mlp, "ConvNet": ConvNet, "Gpt": Gpt, "Llama": Llama, "ResNet18": ResNet18}
    model = models[name](**json.loads(options)).eval()
    print("\n".join(model.state_dict()))
    out = {"own/" + key: value.clone() for key, value in model.state_dict().items()}
    out["own_output"] = model(given["input"])
    state = {key.removeprefix("state/"): value for key, value in given.items() if key.startswith("state/")}
    model.load_state_dict(state)
    out["output"] = model(given["input"])
    out["loss"] = model.loss(given["input"], given["target"])
    out["loss"].backward()
    out.update({"grad/" + key: value.grad for key, value in model.named_parameters()})
    if name == "Gpt":
        out["generated"] = model.generate(given["input"][:, :3], count=12, temperature=0.8, top_k=5, seed=7)
    write_tensors(target, out)


main()
