"""Errors to plant in a fused model before it is checked: name → (family, function that plants it)."""

from __future__ import annotations

from collections.abc import Callable

import worker_families
from torch.nn import functional

from tenonry_torch_base.attention import sdpa
from tenonry_torch_base.attention.groups import GroupedBackend
from tenonry_torch_base.attention.layer import AttentionLayer
from tenonry_torch_base.attention.segments import Segment
from tenonry_worker_torch import build_model
from tenonry_worker_torch.fuse import decoder
from tenonry_worker_torch.fuse.linear import DenseLinear
from tenonry_worker_torch.loading import packed_run
from tenonry_worker_torch.passes import fusion
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend

DEEP = worker_families.SMALL | {"num_hidden_layers": 8, "hidden_size": 32, "head_dim": 8}
GEMMA = DEEP | {
    "sliding_window": 6, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.0,
}  # fmt: skip
MODELS = {
    "planted qwen3": ("qwen3", DEEP | {"tie_word_embeddings": True}),
    "planted gemma2": ("gemma2", GEMMA),
}
QWEN3 = "planted qwen3"
GEMMA2 = "planted gemma2"
MIDDLE = 4  # neither in the short stack nor next to one of its layers

Plant = Callable[[object], None]


def in_layers(change: Callable[[list], None]) -> Plant:
    """`change` receives the fused layers, in order."""

    def plant(monkeypatch):
        original = decoder.fused_layers

        def changed(model, layers):
            fused = original(model, layers)
            change(fused)
            return fused

        monkeypatch.setattr(decoder, "fused_layers", changed)

    return plant


def in_head(change: Callable[[object], None]) -> Plant:
    def plant(monkeypatch):
        original = decoder.fused_head

        def changed(model):
            head = original(model)
            change(head)
            return head

        monkeypatch.setattr(decoder, "fused_head", changed)

    return plant


def in_spec(number: int, **fields) -> Plant:
    """After the probe run, a layer is taken for another kind."""

    def plant(monkeypatch):
        original = build_model.layer_groups

        def changed(specs, *arguments, **options):
            for name, value in fields.items():
                setattr(specs[number], name, value)
            return original(specs, *arguments, **options)

        monkeypatch.setattr(build_model, "layer_groups", changed)

    return plant


def rotary_one_token_late(number):
    def change(fused):
        attention = fused[number].attention
        own = attention.between
        attention.between = lambda projected, cos, sin, keep: own(
            projected, cos.roll(1, 0), sin.roll(1, 0), keep
        )

    return in_layers(change)


def no_head_norm(fused):
    fused[MIDDLE].attention.head_norm = None


def head_norms_of_the_neighbour(fused):
    fused[MIDDLE].attention.head_norm = fused[MIDDLE + 1].attention.head_norm


def norm_of_the_neighbour(fused):
    fused[MIDDLE].before_mlp = fused[MIDDLE + 1].before_mlp


def layers_out_of_order(fused):
    fused[MIDDLE], fused[MIDDLE + 1] = fused[MIDDLE + 1], fused[MIDDLE]


def transposed_output(fused):
    attention = fused[MIDDLE].attention
    weight = attention.out.weight
    attention.out = DenseLinear(weight.t().contiguous(), None, attention.out.sources)


def attention_of_the_neighbour(fused):
    """Both layers write and read one cache."""
    fused[MIDDLE].attention.attend = fused[MIDDLE + 1].attention.attend


def one_cache_for_two(monkeypatch):
    original = packed_run.bind_kv_cache

    def bound(caches, layers, held):
        original(caches, layers, held)
        ordered = sorted(layers.values(), key=lambda layer: layer.spec.index)
        ordered[MIDDLE].kv_cache = ordered[MIDDLE + 1].kv_cache

    monkeypatch.setattr(packed_run, "bind_kv_cache", bound)


def forgotten(monkeypatch):
    """A layer's writes are lost after the step."""
    original = AttentionLayer.__call__

    def call(layer, *arguments):
        out = original(layer, *arguments)
        if layer.spec.index == MIDDLE:
            layer.kv_cache[0].both.zero_()
        return out

    monkeypatch.setattr(AttentionLayer, "__call__", call)


def one_slab_for_two(monkeypatch):
    original = CpuBackend.__init__

    def made(backend, *arguments):
        original(backend, *arguments)
        names = list(backend.number_of)
        if len(names) > MIDDLE + 1:
            backend.number_of[names[MIDDLE]] = MIDDLE + 1

    monkeypatch.setattr(CpuBackend, "__init__", made)


def other_group(monkeypatch):
    """A layer without a window in the group of those that have one, and in a tensor of another layer there."""
    original = GroupedBackend.__init__

    def made(backend, parts):
        original(backend, parts)
        ordered = sorted(backend.layers, key=lambda layer: layer.index)
        stray = ordered[MIDDLE + 1].name
        other = ordered[MIDDLE].name
        backend.number_of[stray] = backend.number_of[other]
        part = parts[backend.number_of[other]]
        part.number_of[stray] = part.number_of[other]

    monkeypatch.setattr(GroupedBackend, "__init__", made)


def chunk_boundary(monkeypatch):
    """Queries of a later chunk do not see their own token."""
    original = sdpa.attend_in_pieces

    def attended(layer, query, key, value, segment, first_key):
        if segment.start:
            segment = Segment(0, 1, segment.length, segment.row, segment.start - 1)
        return original(layer, query, key, value, segment, first_key)

    monkeypatch.setattr(sdpa, "attend_in_pieces", attended)


def other_rows(head):
    weight = head.head.weight
    head.head = DenseLinear(weight.roll(1, 0), None, head.head.sources)


def no_softcap(head):
    head.softcap = 0.0


def no_last_norm(head):
    head.norm = lambda hidden: hidden


def embedding_unscaled(monkeypatch):
    original = decoder.fused_forward

    def made(*arguments):
        fused = original(*arguments)
        weight = fused.embed.weight
        fused.embed = lambda ids: functional.embedding(ids, weight)
        return fused

    monkeypatch.setattr(fusion, "fused_forward", made)


FAULTS: dict[str, tuple[str, Plant]] = {
    "rotary of the last layer": (QWEN3, rotary_one_token_late(-1)),
    "rotary of a middle layer": (QWEN3, rotary_one_token_late(MIDDLE)),
    "norms of queries and keys left out": (QWEN3, in_layers(no_head_norm)),
    "norms of queries and keys of the neighbour": (QWEN3, in_layers(head_norms_of_the_neighbour)),
    "norm of the neighbour": (QWEN3, in_layers(norm_of_the_neighbour)),
    "layers out of order": (QWEN3, in_layers(layers_out_of_order)),
    "output projection transposed": (QWEN3, in_layers(transposed_output)),
    "attention of the neighbour": (QWEN3, in_layers(attention_of_the_neighbour)),
    "one cache for two layers": (QWEN3, one_cache_for_two),
    "a cache that forgets": (QWEN3, forgotten),
    "one slab for two layers": (QWEN3, one_slab_for_two),
    "another layer's group": (GEMMA2, other_group),
    "scale": (QWEN3, in_spec(MIDDLE, scaling=0.5)),
    "window left out": (GEMMA2, in_spec(MIDDLE, window=0)),
    "window where there is none": (GEMMA2, in_spec(MIDDLE + 1, window=6)),
    "soft cap left out": (GEMMA2, in_spec(MIDDLE, softcap=0.0)),
    "chunk boundary": (QWEN3, chunk_boundary),
    "tied head with other rows": (QWEN3, in_head(other_rows)),
    "soft cap of the head left out": (GEMMA2, in_head(no_softcap)),
    "last norm left out": (QWEN3, in_head(no_last_norm)),
    "embedding without its scale": (GEMMA2, embedding_unscaled),
}
