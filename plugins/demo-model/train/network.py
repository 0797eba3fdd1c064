"""The Llama network of the demo model, written for fast training on one CPU thread. For the training script only.

The module of transformers is the reference; `to_llama` moves the weights there, and the training script compares the
two losses. Attention is computed in query blocks because torch's fused kernel is slow for heads this narrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 — its usual name

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

_PARTS = {"input_layernorm": "", "post_attention_layernorm": ""} | dict.fromkeys(
    ("gate_proj", "up_proj", "down_proj"), "mlp."
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network; `head_dim` is `hidden // heads`."""

    vocab: int = 2048
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 640
    max_positions: int = 2048
    rope_theta: float = 100_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


class Layer(nn.Module):
    """One pre-norm decoder layer; parameter names are those of transformers, without the module path."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head_dim

        def matrix(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns) * columns**-0.5 * scale)

        self.input_layernorm = nn.Parameter(torch.ones(shape.hidden))
        self.post_attention_layernorm = nn.Parameter(torch.ones(shape.hidden))
        self.q_proj, self.k_proj = matrix(shape.hidden, shape.hidden), matrix(kv, shape.hidden)
        self.v_proj, self.o_proj = matrix(kv, shape.hidden), matrix(shape.hidden, shape.hidden, 0.3)
        self.gate_proj = matrix(shape.intermediate, shape.hidden)
        self.up_proj = matrix(shape.intermediate, shape.hidden)
        self.down_proj = matrix(shape.hidden, shape.intermediate, 0.3)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Take x [B, T, hidden] in the compute dtype and cos, sin [T, head_dim]; return [B, T, hidden]."""
        batch, length, hidden = x.shape
        dtype = x.dtype
        y = _norm(x, self.input_layernorm, self.shape.norm_eps)

        def heads(weight: Tensor) -> Tensor:
            return (
                F.linear(y, weight.to(dtype))
                .view(batch, length, -1, self.shape.head_dim)
                .transpose(1, 2)
            )

        q, k = _rotate(heads(self.q_proj), cos, sin), _rotate(heads(self.k_proj), cos, sin)
        attended = (
            causal_attention(q, k, heads(self.v_proj))
            .transpose(1, 2)
            .reshape(batch, length, hidden)
        )
        x = x + F.linear(attended, self.o_proj.to(dtype))
        y = _norm(x, self.post_attention_layernorm, self.shape.norm_eps)
        gated = F.silu(F.linear(y, self.gate_proj.to(dtype))) * F.linear(y, self.up_proj.to(dtype))
        return x + F.linear(gated, self.down_proj.to(dtype))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def causal_attention(q: Tensor, k: Tensor, v: Tensor, block: int = 128) -> Tensor:
    """Grouped causal attention: q [B, H, T, D], k and v [B, KV, T, D] -> [B, H, T, D], by blocks of queries."""
    batch, heads, length, width = q.shape
    groups = heads // k.shape[1]
    k, v = k.reshape(-1, length, width), v.reshape(-1, length, width)
    outs = []
    for start in range(0, length, block):
        end = min(start + block, length)
        rows = (q[:, :, start:end] * width**-0.5).reshape(k.shape[0], -1, width)
        hidden = torch.arange(end) > torch.arange(start, end)[:, None]
        mask = (
            torch.zeros(end - start, end, dtype=q.dtype).masked_fill(hidden, -1e4).repeat(groups, 1)
        )
        scores = torch.baddbmm(mask, rows, k[:, :end].transpose(1, 2))
        outs.append(
            torch.bmm(scores.softmax(-1), v[:, :end]).view(batch, heads, end - start, width)
        )
    return torch.cat(outs, 2)


class Network(nn.Module):
    """Embedding, layers, norm and output head; the head starts as a small copy of the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Parameter(torch.randn(shape.vocab, shape.hidden))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        wire(self)
        self.lm_head = nn.Parameter(self.embed_tokens.detach() * 0.04)

    def loss(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Mean next-token cross entropy (nats) of ids [B, T], computed in `dtype`, the softmax in float32."""
        angles = torch.outer(torch.arange(ids.shape[1]).float(), frequencies(self.shape)).repeat(
            1, 2
        )
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        x = F.embedding(ids, self.embed_tokens).to(dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = _norm(x[:, :-1], self.norm, self.shape.norm_eps)
        logits = F.linear(x, self.lm_head.to(dtype)).float()
        return F.cross_entropy(logits.reshape(-1, self.shape.vocab), ids[:, 1:].reshape(-1))


def frequencies(shape: Shape) -> Tensor:
    """Rotary frequencies, one per pair of dimensions."""
    return shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)


def wire(network: Network, match: float = 2.5, copy: float = 4.0) -> None:
    """Start with attention that can copy, which a run this short would hardly find: an induction circuit.

    The first key/value head of layer 0 looks at the previous token (its rotary phases peak at distance one) and writes
    that token into a subspace of its own; the first head of the next layers looks for the current token there, and so
    attends to what followed it before, and adds that token to the residual stream. Training changes all of this freely.
    """
    shape, width = network.shape, network.shape.head_dim

    def frame() -> Tensor:
        rows = torch.linalg.qr(torch.randn(shape.hidden, width))[0].T.contiguous()
        rows[:, 0] = (
            0  # dimension 0 is the same for every token, and drives the look at the previous one
        )
        return rows

    with torch.no_grad():
        network.embed_tokens[:, 0] = 6.0
        carried, written, speed = frame(), frame(), frequencies(shape)
        first = network.layers[0]
        query, key = torch.zeros(width, shape.hidden), torch.zeros(width, shape.hidden)
        for pair in range(4):  # the fastest pairs tell neighbours apart
            query[pair, 0] = 1.2
            key[pair, 0], key[pair + width // 2, 0] = (
                1.2 * speed[pair].cos(),
                1.2 * speed[pair].sin(),
            )
        first.q_proj[:width], first.k_proj[:width] = query, key
        first.v_proj[:width], first.o_proj[:, :width] = carried, written.T
        slow = (speed < 0.006).float().repeat(2)[:, None]  # pairs that hardly turn within a story
        for layer in network.layers[1:3]:
            copied = frame()
            layer.q_proj[:width], layer.k_proj[:width] = (
                match * slow * carried,
                match * slow * written,
            )
            layer.v_proj[:width], layer.o_proj[:, :width] = copied, copy * copied.T


def to_llama(network: Network, eos_ids: list[int], pad_id: int) -> LlamaForCausalLM:
    """The same weights as a transformers model in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = network.shape
    config = LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        intermediate_size=shape.intermediate, max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta}, rms_norm_eps=shape.norm_eps,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=eos_ids, pad_token_id=pad_id,
    )  # fmt: skip
    state = {"model.embed_tokens.weight": network.embed_tokens, "model.norm.weight": network.norm}
    for index, layer in enumerate(network.layers):
        for name, value in layer.named_parameters():
            state[f"model.layers.{index}.{_PARTS.get(name, 'self_attn.')}{name}.weight"] = value
    state["lm_head.weight"] = network.lm_head
    llama = LlamaForCausalLM(config)
    llama.load_state_dict({name: value.detach() for name, value in state.items()}, strict=True)
    return llama.to(torch.bfloat16)
