#!/usr/bin/env python3
"""Two tiny random checkpoints with plain transformers in them, and their logits in float64.

An implementation of its own, in NumPy, from the public descriptions of Llama and Qwen3: it shares nothing with the C code
that it judges. Run by hand; what it writes is kept beside it.
"""
import json
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).parent
VOCAB, DIM, LAYERS, HEADS, KV, HEAD, HIDDEN = 1024, 64, 3, 4, 2, 32, 96
ROWS = 40


def bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def tensors(rng, norms):
    def mat(n, k):
        return rng.standard_normal((n, k)) / np.sqrt(k)

    t = {"model.embed_tokens.weight": mat(VOCAB, DIM) * 8, "model.norm.weight": 1 + 0.1 * rng.standard_normal(DIM)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        t[p + "input_layernorm.weight"] = 1 + 0.1 * rng.standard_normal(DIM)
        t[p + "post_attention_layernorm.weight"] = 1 + 0.1 * rng.standard_normal(DIM)
        t[p + "self_attn.q_proj.weight"] = mat(HEADS * HEAD, DIM)
        t[p + "self_attn.k_proj.weight"] = mat(KV * HEAD, DIM)
        t[p + "self_attn.v_proj.weight"] = mat(KV * HEAD, DIM)
        t[p + "self_attn.o_proj.weight"] = mat(DIM, HEADS * HEAD)
        if norms:
            t[p + "self_attn.q_norm.weight"] = 1 + 0.1 * rng.standard_normal(HEAD)
            t[p + "self_attn.k_norm.weight"] = 1 + 0.1 * rng.standard_normal(HEAD)
        t[p + "mlp.gate_proj.weight"] = mat(HIDDEN, DIM)
        t[p + "mlp.up_proj.weight"] = mat(HIDDEN, DIM)
        t[p + "mlp.down_proj.weight"] = mat(DIM, HIDDEN)
    return t


def write(path, arrays):
    head, at = {}, 0
    for name, (dtype, a) in arrays.items():
        head[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, a in arrays.values():
            f.write(np.ascontiguousarray(a).tobytes())


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rope(x, theta):
    n, _, d = x.shape
    angle = np.outer(np.arange(n), theta ** (-np.arange(0, d, 2) / d))
    c, s = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    a, b = x[..., : d // 2], x[..., d // 2:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def logits(t, ids, theta, eps, head):
    h = t["model.embed_tokens.weight"][ids]
    n = len(ids)
    mask = np.where(np.tril(np.ones((n, n))) > 0, 0.0, -np.inf)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        x = rms(h, t[p + "input_layernorm.weight"], eps)
        q = (x @ t[p + "self_attn.q_proj.weight"].T).reshape(n, HEADS, HEAD)
        k = (x @ t[p + "self_attn.k_proj.weight"].T).reshape(n, KV, HEAD)
        v = (x @ t[p + "self_attn.v_proj.weight"].T).reshape(n, KV, HEAD)
        if p + "self_attn.q_norm.weight" in t:
            q = rms(q, t[p + "self_attn.q_norm.weight"], eps)
            k = rms(k, t[p + "self_attn.k_norm.weight"], eps)
        q, k = rope(q, theta), rope(k, theta)
        out = np.empty((n, HEADS, HEAD))
        for j in range(HEADS):
            score = q[:, j] @ k[:, j // (HEADS // KV)].T / np.sqrt(HEAD) + mask
            e = np.exp(score - score.max(-1, keepdims=True))
            out[:, j] = e / e.sum(-1, keepdims=True) @ v[:, j // (HEADS // KV)]
        h = h + out.reshape(n, -1) @ t[p + "self_attn.o_proj.weight"].T
        x = rms(h, t[p + "post_attention_layernorm.weight"], eps)
        g, u = x @ t[p + "mlp.gate_proj.weight"].T, x @ t[p + "mlp.up_proj.weight"].T
        h = h + (g / (1 + np.exp(-g)) * u) @ t[p + "mlp.down_proj.weight"].T
    return rms(h, t["model.norm.weight"], eps) @ head.T


def make(name, norms, tied, theta, store):
    rng = np.random.default_rng(20)
    t = tensors(rng, norms)
    if not tied:
        t["lm_head.weight"] = rng.standard_normal((VOCAB, DIM)) / np.sqrt(DIM)
    stored = {k: store(v) for k, v in t.items()}
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    write(folder / "model.safetensors", {k: (d, a) for k, (d, a, _) in stored.items()})
    exact = {k: w.astype(np.float64) for k, (_, _, w) in stored.items()}
    ids = rng.integers(0, VOCAB, ROWS)
    head = exact["model.embed_tokens.weight" if tied else "lm_head.weight"]
    z = logits(exact, ids, theta, 1e-6, head)
    write(folder / "goldens.safetensors",
          {"ids": ("I32", ids.astype(np.int32)), "logits": ("F32", z.astype(np.float32))})
    config = {"model_type": name, "vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD, "intermediate_size": HIDDEN,
              "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": theta, "max_position_embeddings": 4096,
              "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def as_bf16(v):
    bits = bf16(v)
    return "BF16", bits, widen(bits)


def as_f16(v):
    half = np.asarray(v, np.float16)
    return "F16", half, half


make("llama", False, False, 10000.0, as_f16)
make("qwen3", True, True, 1000000.0, as_bf16)
