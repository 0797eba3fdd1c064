"""Step kernels for a fused model in bfloat16 with packed weights. Worker process.

Linear layers use a kernel if it is faster, up to a number of rows; it reads the weights in oneDNN's layout. Decode
attention uses one for all layers or for none, since it reads K/V from blocks instead of slabs. It is required for
kernels of whole layers and of prompt chunks. Operations between the products may use one for any number of rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tenonry_torch_base.kernel_parts import ChunkAttentionParts, LinearParts, PagedAttentionParts
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP
from tenonry_worker_torch.fuse.decoder import FusedForward, FusedHead
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.kernels import linear, paged
from tenonry_worker_torch_cpu.kernels.between import between_products
from tenonry_worker_torch_cpu.kernels.candidate import Candidate, Trial
from tenonry_worker_torch_cpu.kernels.chooser import ANY_ROWS
from tenonry_worker_torch_cpu.kernels.chunks import chunk_candidates
from tenonry_worker_torch_cpu.kernels.stacks import rounds, stacks
from tenonry_worker_torch_cpu.kernels.trial import PAR
from tenonry_worker_torch_cpu.packing.onednn import PackedLinear
from tenonry_worker_torch_cpu.packing.widened import BlockedLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tenonry_torch_base.attention.base import AttentionBackend, LayerSpec
    from tenonry_torch_base.paged_attention import ChunkKernel, PagedKernel
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.layer import FusedLayer
    from tenonry_worker_torch.fuse.rope import RopeTable
    from tenonry_worker_torch_cpu.kernels.trial import Candidates

LAYER = "layer"
ATTENTION = "attention"
LINEAR = "linear"
PREFILL = "prefill"
SAMPLE = 4096  # outputs of a trial


def bfloat16_parts(
    forward: Forward, backend: AttentionBackend, *, reads_cache: bool = True
) -> Iterator[Candidate]:
    """Candidates of a fused model in bfloat16 with packed weights.

    `reads_cache`: kernels support the KV cache's storage; otherwise attention and whole layers have none.
    """
    if not isinstance(forward, FusedForward):
        return
    for layer in forward.layers:
        if isinstance(layer.attention, FusedAttention):
            yield from _linear(layer.attention, "qkv")
            yield from _linear(layer.attention, "out")
        if isinstance(layer.mlp, FusedMLP):
            yield from _linear(layer.mlp, "gate_up")
            yield from _linear(layer.mlp, "down")
    attends: dict[str, PagedKernel] = {}
    chunks: dict[str, ChunkKernel] = {}
    if reads_cache and paged.cpu_backends(backend):
        yield from _decoding(forward, backend, attends)
    if attends and len(attends) == len(backend.layers):
        yield from _prefill(forward, backend, attends, chunks)
        for layer in forward.layers:
            yield _layer(layer, forward.ropes.get(layer.layer_type), attends)
        if type(backend) is CpuBackend:
            yield from stacks(forward, attends, chunks)
    if isinstance(forward.end, FusedHead):
        # The largest: what is left of the time is enough for few rows. Multi-token steps need its kernel, and save more
        # than a kernel at par loses.
        yield from _linear(forward.end, "head", times=PAR if forward.stack is not None else 1.0)
    yield from rounds(forward, attends)
    yield from between_products(forward)  # for prompts: whole layers have theirs by now


def _linear(owner: Any, place: str, *, times: float = 1.0) -> Iterator[Candidate]:
    own = getattr(owner, place)
    if not isinstance(own, PackedLinear | BlockedLinear):
        return
    weight = own.blocked()
    outputs, inputs = own.shape
    shape = f"{outputs}×{inputs}"
    # Compared outputs: some of them, if weights are available in parts.
    some = own if isinstance(own, PackedLinear) else own.sample(SAMPLE)
    some_weight = None if some is own else some.blocked()
    yield Candidate(
        kind=(LINEAR, shape, own.bias is None),
        parts=None if weight is None else LinearParts(weight),
        sample=None if some_weight is None else LinearParts(some_weight),
        trial=Trial.ROWS,
        compared=lambda kernel: partial(linear.candidates, some, kernel),
        assign=lambda changes, kernel, most: changes.set(
            owner, place, linear.KernelLinear(own, kernel, most)
        ),
        rows_name=shape,
        # Torch would widen blocks piece by piece, and so is many times slower for few rows, and slower for many.
        if_untried=ANY_ROWS if isinstance(own, BlockedLinear) else 0,
        times=times,
    )


def _decoding(
    forward: FusedForward, backend: AttentionBackend, attends: dict[str, PagedKernel]
) -> Iterator[Candidate]:
    """Yield decode attention: for all layers or for none, so the backend receives the kernels with the last one.

    `attends`: receives the kernels by layer name.
    """
    places: list[tuple[FusedAttention, RopeTable]] = []
    for layer in forward.layers:
        own: Any = layer.attention
        rope = forward.ropes.get(layer.layer_type)
        if not isinstance(own, FusedAttention):
            continue
        attend: Any = own.attend
        if rope is None or not paged.is_plain(attend):
            return
        places.append((own, rope))
    for own, rope in places:
        name = own.spec.name
        yield Candidate(
            kind=(ATTENTION, *_shape(own.spec)),
            parts=PagedAttentionParts(paged.paged_parts(own.spec)),
            trial=Trial.ROWS,
            compared=partial(_attention_compared, own, rope),
            assign=partial(_attend, backend, attends, name),
            reports_refusal=False,
        )
        if name not in attends:
            return


def _attention_compared(
    own: FusedAttention, rope: RopeTable, kernel: PagedKernel
) -> Callable[[int], Candidates]:
    return partial(paged.attention_candidates, own, kernel, rope)


def _attend(
    backend: AttentionBackend,
    attends: dict[str, PagedKernel],
    name: str,
    changes: Changes,
    kernel: PagedKernel,
    _most: int,
) -> None:
    """Add the kernel of a layer; with the last one, the backend reads K/V from their blocks."""
    attends[name] = kernel
    if len(attends) == len(backend.layers):
        changes.on_undo(partial(attend_with, backend, {}, {}))
        attend_with(backend, attends, {})


def _prefill(
    forward: FusedForward,
    backend: AttentionBackend,
    attends: Mapping[str, PagedKernel],
    chunks: dict[str, ChunkKernel],
) -> Iterator[Candidate]:
    """Attention of prompt chunks. `chunks`: receives the kernels by layer name."""
    for layer in forward.layers:
        if isinstance(layer.attention, FusedAttention):
            spec = layer.attention.spec
            yield Candidate(
                kind=(PREFILL, *_shape(spec)),
                parts=ChunkAttentionParts(paged.paged_parts(spec)),
                trial=Trial.ONCE,
                compared=partial(_chunks_compared, spec, attends[spec.name]),
                assign=partial(_prefill_with, backend, attends, chunks, spec.name),
            )


def _chunks_compared(
    spec: LayerSpec, attends: PagedKernel, kernel: ChunkKernel
) -> Callable[[], Candidates]:
    return partial(chunk_candidates, spec, attends, kernel)


def _prefill_with(
    backend: AttentionBackend,
    attends: Mapping[str, PagedKernel],
    chunks: dict[str, ChunkKernel],
    name: str,
    _changes: Changes,
    kernel: ChunkKernel,
    _most: int,
) -> None:
    """Add the kernel of a layer. The reversal of `_attend` covers it."""
    chunks[name] = kernel
    attend_with(backend, attends, chunks)


def _layer(
    layer: FusedLayer, rope: RopeTable | None, attends: Mapping[str, PagedKernel]
) -> Candidate:
    parts = paged.layer_parts(layer, rope)
    attend: Any = getattr(layer.attention, "attend", None)
    shape: tuple[object, ...] = ()
    if parts is not None:
        shape = (parts.attention.window, parts.attention.heads, parts.gate_up.outputs)
    return Candidate(
        kind=(LAYER, *shape, layer.layer_type),
        parts=parts,
        trial=Trial.ROWS,
        compared=lambda kernel: partial(
            paged.layer_candidates,
            layer,
            kernel,
            attends[attend.spec.name],
            rope,  # type: ignore[arg-type] - has parts
        ),
        assign=lambda changes, kernel, most: changes.set(
            layer, "kernel", paged.WholeLayer(attend, kernel, most)
        ),
        rows_name=LAYER,
    )


def attend_with(
    backend: AttentionBackend, decode: Mapping[str, PagedKernel], prefill: Mapping[str, ChunkKernel]
) -> None:
    """Set attention kernels by layer name; {} selects torch."""
    parts = paged.cpu_backends(backend)
    for part in parts:
        part.decode_with(decode)
        part.prefill_with(prefill)
    backend.cache_sizes = parts[0].cache_sizes


def _shape(spec: LayerSpec) -> tuple[object, ...]:
    """Key of the differences between attention kernels."""
    parts = paged.paged_parts(spec)
    return (parts.heads, parts.kv_heads, parts.size, parts.scaling, parts.window)
