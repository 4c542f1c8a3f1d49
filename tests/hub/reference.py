"""Plain GPT-2 and Llama in Python, the oracle of language_model_test.cc and of `lockstep generate --model`.

    reference.py make KIND FOLDER SEED    writes a small random model as the model hubs lay it out; KIND: gpt2, llama,
                                          llama-tied (one file), llama-shards (three files with an index, bf16)
    reference.py generate FOLDER IDS N    reads such a folder and prints IDS and N greedy tokens, with commas
    reference.py logits FOLDER IDS        prints the logits behind the last token
"""
import json
import math
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def write_safetensors(path, tensors):
    header, offset, data = {"__metadata__": {"format": "pt"}}, 0, []
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().clone().untyped_storage())
        dtype = next(key for key, value in DTYPES.items() if value == tensor.dtype)
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_safetensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = torch.frombuffer(bytearray(raw[8 + length + begin:8 + length + end]), dtype=DTYPES[entry["dtype"]])
            tensors[name] = data.view(entry["shape"]).float()
    return tensors


def gpt2_shapes(config):
    width, layers = config["n_embd"], config["n_layer"]
    yield "wte.weight", (config["vocab_size"], width)
    yield "wpe.weight", (config["n_positions"], width)
    for layer in range(layers):
        prefix = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield prefix + norm + ".weight", (width,)
            yield prefix + norm + ".bias", (width,)
        for name, inputs, outputs in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                      ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
            yield prefix + name + ".weight", (inputs, outputs)
            yield prefix + name + ".bias", (outputs,)
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)


def llama_shapes(config):
    width, hidden, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (width,)
        yield prefix + "post_attention_layernorm.weight", (width,)
        yield prefix + "self_attn.q_proj.weight", (config["num_attention_heads"] * size, width)
        yield prefix + "self_attn.k_proj.weight", (config["num_key_value_heads"] * size, width)
        yield prefix + "self_attn.v_proj.weight", (config["num_key_value_heads"] * size, width)
        yield prefix + "self_attn.o_proj.weight", (width, config["num_attention_heads"] * size)
        yield prefix + "mlp.gate_proj.weight", (hidden, width)
        yield prefix + "mlp.up_proj.weight", (hidden, width)
        yield prefix + "mlp.down_proj.weight", (width, hidden)
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], width)


def make(kind, folder, seed):
    torch.manual_seed(seed)
    if kind == "gpt2":
        config = dict(model_type="gpt2", n_layer=2, n_head=3, n_embd=24, n_positions=32, vocab_size=61,
                      activation_function="gelu_new", layer_norm_epsilon=1e-05, n_inner=None, attn_pdrop=0.1)
        shapes = gpt2_shapes(config)
    else:
        config = dict(model_type="llama", num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
                      hidden_size=24, head_dim=4, intermediate_size=40, max_position_embeddings=32, vocab_size=61,
                      rope_theta=500.0, rms_norm_eps=1e-06, hidden_act="silu",
                      tie_word_embeddings=kind == "llama-tied",
                      rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                        original_max_position_embeddings=24) if kind == "llama" else None)
        shapes = llama_shapes(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {name: torch.randn(shape) * 0.3 + (1.0 if len(shape) == 1 else 0.0)
               for name, shape in shapes}
    if kind == "gpt2":
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()   # old versions save it
    if kind != "llama-shards":
        write_safetensors(folder / "model.safetensors", tensors)
        return
    weight_map, names = {}, list(tensors)
    for part in range(3):
        file = f"model-{part + 1:05}-of-00003.safetensors"
        some = {name: tensors[name].to(torch.bfloat16) for name in names[part::3]}
        write_safetensors(folder / file, some)
        weight_map.update({name: file for name in some})
    (folder / "model.safetensors.index.json").write_text(json.dumps(dict(metadata={}, weight_map=weight_map)))


def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf).softmax(-1) @ v


def gpt2(config, w, ids):
    heads, width = config["n_head"], config["n_embd"]

    def linear(name, x):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def norm(name, x):
        return F.layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    x = w["wte.weight"][ids] + w["wpe.weight"][:len(ids)]
    for layer in range(config["n_layer"]):
        prefix = f"h.{layer}."
        parts = linear(prefix + "attn.c_attn", norm(prefix + "ln_1", x)).split(width, -1)
        q, k, v = (part.view(len(ids), heads, -1).transpose(0, 1) for part in parts)
        x = x + linear(prefix + "attn.c_proj", attend(q, k, v).transpose(0, 1).reshape(len(ids), width))
        y = linear(prefix + "mlp.c_fc", norm(prefix + "ln_2", x))
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))
        x = x + linear(prefix + "mlp.c_proj", y)
    return norm("ln_f", x)[-1] @ w["wte.weight"].t()


def llama(config, w, ids):
    heads, groups, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    frequencies = [1 / config["rope_theta"] ** (2 * pair / size) for pair in range(size // 2)]
    if scaling := config.get("rope_scaling"):
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        trained, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        for pair, frequency in enumerate(frequencies):
            share = min(1.0, max(0.0, (trained * frequency / (2 * math.pi) - low) / (high - low)))
            frequencies[pair] = frequency * share + frequency / factor * (1 - share)
    angles = torch.outer(torch.arange(len(ids)).float(), torch.tensor(frequencies))

    def norm(name, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * w[name + ".weight"]

    def turn(x):
        first, second = x.chunk(2, -1)
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        y = norm(prefix + "input_layernorm", x)
        q, k, v = ((y @ w[f"{prefix}self_attn.{name}_proj.weight"].t()).view(len(ids), -1, size).transpose(0, 1)
                   for name in "qkv")
        q, k = turn(q), turn(k)
        group = [head * groups // heads for head in range(heads)]
        y = torch.cat([attend(q[head], k[group[head]], v[group[head]]) for head in range(heads)], -1)
        x = x + y @ w[prefix + "self_attn.o_proj.weight"].t()
        y = norm(prefix + "post_attention_layernorm", x)
        y = F.silu(y @ w[prefix + "mlp.gate_proj.weight"].t()) * (y @ w[prefix + "mlp.up_proj.weight"].t())
        x = x + y @ w[prefix + "mlp.down_proj.weight"].t()
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return norm("model.norm", x)[-1] @ head.t()


def next_logits(folder):
    config, weights = json.loads((folder / "config.json").read_text()), {}
    for file in folder.glob("*.safetensors"):
        weights.update(read_safetensors(file))
    if config["model_type"] == "gpt2":
        weights = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
        return config["n_positions"], lambda ids: gpt2(config, weights, ids)
    return config["max_position_embeddings"], lambda ids: llama(config, weights, ids)


def main():
    task, *words = sys.argv[1:]
    torch.set_num_threads(1)
    if task == "make":
        make(words[0], pathlib.Path(words[1]), int(words[2]))
        return
    most, logits = next_logits(pathlib.Path(words[0]))
    ids = [int(word) for word in words[1].split(",")]
    if task == "logits":
        print(" ".join(repr(value) for value in logits(torch.tensor(ids)).tolist()))
        return
    if task == "generate_all":  # like transformers: no window
        most = len(ids) + int(words[2])
    for _ in range(int(words[2])):
        ids.append(logits(torch.tensor(ids[-most:])).argmax().item())
    print(",".join(map(str, ids)))


main()
