#!/usr/bin/env python3
"""A tiny random checkpoint with a next-token head in it, and the chains that the head drafts, in float64.

The definition taken literally: cell i joins the embedding of token i + 1 with the model's last hidden row i, and one more
layer runs on all cells at once, with no state and no index shifted. Run by hand; what it writes is kept beside it.
"""
import json
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).parent
VOCAB, DIM, LAYERS, HEADS, KV, HEAD, HIDDEN, THETA, EPS = 512, 48, 2, 4, 2, 16, 64, 10000.0, 1e-6
ROWS, CHAIN = 48, 3


def rms(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def rope(x):
    n, _, d = x.shape
    a = np.outer(np.arange(n), THETA ** (-np.arange(0, d, 2) / d))
    c, s = np.cos(a)[:, None], np.sin(a)[:, None]
    lo, hi = x[..., : d // 2], x[..., d // 2:]
    return np.concatenate([lo * c - hi * s, hi * c + lo * s], -1)


def layer(t, i, h):
    p, n = f"model.layers.{i}.", len(h)
    x = rms(h, t[p + "input_layernorm.weight"])

    def heads(name, count):
        return (x @ t[p + f"self_attn.{name}_proj.weight"].T).reshape(n, count, HEAD)

    q, k, v = rope(heads("q", HEADS)), rope(heads("k", KV)), heads("v", KV)
    out = np.zeros((n, HEADS, HEAD))
    for j in range(HEADS):
        s = q[:, j] @ k[:, j * KV // HEADS].T / np.sqrt(HEAD)
        e = np.exp(np.where(np.tri(n) > 0, s - s.max(), -np.inf))
        out[:, j] = e / e.sum(-1, keepdims=True) @ v[:, j * KV // HEADS]
    h = h + out.reshape(n, -1) @ t[p + "self_attn.o_proj.weight"].T
    x = rms(h, t[p + "post_attention_layernorm.weight"])
    g = x @ t[p + "mlp.gate_proj.weight"].T
    return h + (g / (1 + np.exp(-g)) * (x @ t[p + "mlp.up_proj.weight"].T)) @ t[p + "mlp.down_proj.weight"].T


def chain(t, ids, p):
    """Drafts behind the pending token ids[p]."""
    h = t["model.embed_tokens.weight"][ids[:p]]
    for i in range(LAYERS):
        h = layer(t, i, h)
    at, tok, hidden, drafts, gap = f"model.layers.{LAYERS}.", list(ids[1:p + 1]), list(h), [], np.inf
    for _ in range(CHAIN):
        e = rms(t["model.embed_tokens.weight"][tok], t[at + "enorm.weight"])
        x = np.concatenate([e, rms(np.array(hidden), t[at + "hnorm.weight"])], -1) @ t[at + "eh_proj.weight"].T
        y = layer(t, LAYERS, x)[-1]
        z = t["lm_head.weight"] @ rms(y, t[at + "shared_head.norm.weight"])
        top = np.sort(z)[::-1]
        gap = min(gap, top[0] - top[1])
        drafts.append(int(z.argmax()))
        tok.append(drafts[-1])
        hidden.append(y)
    return drafts, gap


def main():
    rng = np.random.default_rng(7)

    def mat(n, k):
        return rng.standard_normal((n, k)) / np.sqrt(k)

    def vec(n):
        return 1 + 0.2 * rng.standard_normal(n)

    t = {"model.embed_tokens.weight": mat(VOCAB, DIM) * 6, "model.norm.weight": vec(DIM), "lm_head.weight": mat(VOCAB, DIM) * 2}
    for i in range(LAYERS + 1):
        p = f"model.layers.{i}."
        t |= {p + "input_layernorm.weight": vec(DIM), p + "post_attention_layernorm.weight": vec(DIM),
              p + "self_attn.q_proj.weight": mat(HEADS * HEAD, DIM) * 2, p + "self_attn.k_proj.weight": mat(KV * HEAD, DIM) * 2,
              p + "self_attn.v_proj.weight": mat(KV * HEAD, DIM), p + "self_attn.o_proj.weight": mat(DIM, HEADS * HEAD),
              p + "mlp.gate_proj.weight": mat(HIDDEN, DIM), p + "mlp.up_proj.weight": mat(HIDDEN, DIM),
              p + "mlp.down_proj.weight": mat(DIM, HIDDEN)}
    p = f"model.layers.{LAYERS}."
    t |= {p + "enorm.weight": vec(DIM), p + "hnorm.weight": vec(DIM), p + "eh_proj.weight": mat(DIM, 2 * DIM) * 2,
          p + "shared_head.norm.weight": vec(DIM)}
    t = {k: np.asarray(v, np.float16) for k, v in t.items()}
    exact = {k: v.astype(np.float64) for k, v in t.items()}
    ids = rng.integers(0, VOCAB, ROWS).astype(np.int32)
    chains = [chain(exact, ids, p) for p in range(1, ROWS)]
    print("closest call", min(g for _, g in chains))
    drafts = np.array([[-1] * CHAIN] + [d for d, _ in chains], np.int32)

    def write(path, arrays):
        head, at = {}, 0
        for name, a in arrays.items():
            kind = {"float16": "F16", "int32": "I32"}[a.dtype.name]
            head[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
            at += a.nbytes
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values()))

    write(HERE / "model.safetensors", t)
    write(HERE / "goldens.safetensors", {"ids": ids, "drafts": drafts})
    config = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": LAYERS,
              "num_nextn_predict_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD,
              "intermediate_size": HIDDEN, "hidden_act": "silu", "rms_norm_eps": EPS, "rope_theta": THETA,
              "max_position_embeddings": 4096, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1}
    (HERE / "config.json").write_text(json.dumps(config, indent=1) + "\n")


main()
