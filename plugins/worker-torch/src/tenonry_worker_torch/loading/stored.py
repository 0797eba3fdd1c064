"""Layers whose weights are only in the layout of step kernels, or quantised on a device, while a model is loaded and
compared. Worker process.

Their parameter `weight` has the shape and data type of the weight and no memory: one zero, repeated. The model's own
code computes with numbers that are dequantised for each call, so the floats of one layer exist at a time.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from tenonry.errors import ModelError
from tenonry_torch_base.kernel_parts import LowBitRowsParts
from tenonry_torch_base.quantisations import Quantisation
from tenonry_torch_base.settings import torch_settings
from tenonry_torch_base.step_kernels import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from tenonry.config import EngineConfig
    from tenonry_torch_base.checkpoint import Checkpoint
    from tenonry_torch_base.low_bit import LowBitWeight
    from tenonry_torch_base.quantisations import QuantisedWeight, StoredBlocks
    from tenonry_torch_base.step_kernels import StepKernels
    from tenonry_worker_torch.step_kernels import FoundKernels

    Rows = Callable[[torch.Tensor | None], torch.Tensor]


PIECE = 1 << 20  # float32 elements of a weight in memory at a time


class StoredLinear(nn.Linear):
    """`stored`: None once the layer lost its weight, or received it as floats. `floats`: rows in float32, for products
    piece by piece; oneDNN would compile and keep 16-bit code for each shape.
    """

    stored: LowBitWeight | QuantisedWeight | None
    rows: Rows | None
    floats: Rows | None

    def reset_parameters(self) -> None:
        """Do nothing: the parameters are those of the replaced layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.floats is None:
            return functional.linear(x, self.numbers(), self.bias)
        inputs = x.float()
        made = x.new_empty(*x.shape[:-1], self.out_features)
        step = max(PIECE // self.in_features, 1)
        for begin in range(0, self.out_features, step):
            end = min(begin + step, self.out_features)
            product = functional.linear(inputs, self.floats(torch.arange(begin, end)))
            made[..., begin:end] = product if self.bias is None else product + self.bias[begin:end]
        return made

    def numbers(self) -> torch.Tensor:
        """The weight [out, in]."""
        return self.weight if self.rows is None else self.rows(None)

    def to_floats(self) -> None:
        """Keep the weight as floats from now on."""
        if self.rows is not None:
            self.weight = nn.Parameter(self.numbers(), requires_grad=False)
            self.drop()

    def drop(self) -> None:
        """Release the stored weight, which is now held elsewhere."""
        self.stored = self.rows = self.floats = None

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        """Return a plain layer with copies of the parameters: copies receive other weights."""
        with torch.device("meta"):
            made = nn.Linear(self.in_features, self.out_features, self.bias is not None)
        made.weight = copy.deepcopy(self.weight, memo)
        made.bias = copy.deepcopy(self.bias, memo)
        return made.train(self.training)


def is_in_floats(model: nn.Module) -> bool:
    """Return True if the model's own code multiplies stored matrices in float32."""
    return any(isinstance(part, StoredLinear) and part.floats for part in model.modules())


class StoredEmbedding(nn.Embedding):
    """Embedding with rows dequantised on lookup."""

    rows: Rows

    reset_parameters = StoredLinear.reset_parameters

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made = self.rows(ids.reshape(-1).long().contiguous())
        return made.view(*ids.shape, self.embedding_dim)


def kernels_for(found: FoundKernels | None, config: EngineConfig) -> StepKernels | None:
    """Kernels that may hold the matrices of a file from the start."""
    return None if found is None or reads_weights(config) else found.kernels


def reads_weights(config: EngineConfig) -> bool:
    """Return True if adapters or a vision encoder read weights of a model."""
    return bool(config.max_loras or torch_settings(config).lora_modules or config.max_images)


class DequantisedRows:
    """Numbers of a quantised matrix on its device, in `dtype`, made anew for each call."""

    __slots__ = ("_dtype", "_weight")

    def __init__(self, weight: QuantisedWeight, dtype: torch.dtype) -> None:
        self._weight = weight
        self._dtype = dtype

    def __call__(self, ids: torch.Tensor | None) -> torch.Tensor:
        numbers = self._weight.dequantised(self._dtype)
        return numbers if ids is None else numbers[ids]


def has_blocks(checkpoint: Checkpoint) -> bool:
    """Return True if its quantised matrices are stored in blocks."""
    matrices = checkpoint.matrices
    return matrices is not None and type(matrices.quantisation).blocks is not Quantisation.blocks


def postpone(
    whole: PreTrainedModel, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> None:
    """Leave the quantised matrices of plain layers of `whole` to `attach_stored`; embeddings on the CPU alone, where
    kernels read single rows of them.
    """
    matrices = checkpoint.matrices
    if matrices is None:
        return
    kinds = (nn.Linear, nn.Embedding) if device.type == "cpu" else (nn.Linear,)
    owners = {f"{name}.weight" for name, part in whole.named_modules() if type(part) in kinds}
    matrices.postponed = frozenset(
        key
        for key in matrices.parts
        if key not in checkpoint.converters and checkpoint.targets.get(key) in owners
    )
    matrices.dtype = dtype
    matrices.device = device


def attach_stored(
    model: PreTrainedModel, checkpoint: Checkpoint, kernels: StepKernels | None
) -> None:
    """Read the matrices that were postponed, and replace their layers: into the layout of `kernels`, or, without them,
    onto the device of the model.
    """
    matrices = checkpoint.matrices
    if matrices is None:
        return
    sharing: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            sharing.setdefault(id(module.weight), []).append(name)
    for key, matrix in matrices.unread.items():
        owner = checkpoint.targets[key].rpartition(".")[0]
        names = sharing[id(model.get_submodule(owner).weight)]
        stored: LowBitWeight | QuantisedWeight | None
        if kernels is None:
            stored = matrix.weight().to(model.device)
            rows, floats = DequantisedRows(stored, model.dtype), None
        else:
            blocks = matrix.blocks()
            stored = None if blocks is None else _laid_out(key, blocks, checkpoint, kernels)
            rows, floats = (
                None if stored is None else kernels.make(LowBitRowsParts(stored, dtype))
                for dtype in (model.dtype, torch.float32)
            )
        floats = None if isinstance(floats, Refusal) else floats
        if stored is None or isinstance(rows, Refusal):
            matrices.read[key] = whole = matrix.weight()  # for `attach`
            weight = nn.Parameter(whole.dequantised(model.dtype), requires_grad=False)
            for name in names:
                model.get_submodule(name).weight = weight
        else:
            for name in names:
                model.set_submodule(name, _stored(model.get_submodule(name), stored, rows, floats))
    matrices.unread.clear()


def _laid_out(
    key: str, blocks: StoredBlocks, checkpoint: Checkpoint, kernels: StepKernels
) -> LowBitWeight | None:
    try:
        return kernels.laid_out(blocks)
    except ValueError as error:
        raise ModelError(
            f"{checkpoint.tensors[key].file.resolve()}: tensor {key}: {error}; download the file again"
        ) from None


def _stored(
    module: nn.Module, weight: LowBitWeight | QuantisedWeight, rows: Rows, floats: Rows | None
) -> nn.Module:
    made: StoredLinear | StoredEmbedding
    with torch.device("meta"):
        if isinstance(module, nn.Linear):
            made = StoredLinear(module.in_features, module.out_features, module.bias is not None)
            made.bias = module.bias
            made.stored = weight
            made.floats = floats
        elif isinstance(module, nn.Embedding):
            made = StoredEmbedding(
                module.num_embeddings, module.embedding_dim, padding_idx=module.padding_idx
            )
    made.weight = module.weight
    made.rows = rows
    return made.train(module.training)


def all_to_floats(module: nn.Module) -> None:
    """Keep the weights of all linear layers as floats from now on."""
    for part in module.modules():
        if isinstance(part, StoredLinear):
            part.to_floats()
