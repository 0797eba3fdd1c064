"""Linear layers after a pooling, in the format of sentence-transformers: a folder each, with config.json and weights.
Worker process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file

from tenonry.errors import ModelError
from tenonry_hf_hub import WeightFiles, read_headers
from tenonry_torch_base.seeded import seeded
from tenonry_worker_torch.pooling.recipe import read_json

WEIGHTS = "model.safetensors"
DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"
ACTIVATIONS: dict[str, type[torch.nn.Module]] = {
    "Tanh": torch.nn.Tanh,
    "Identity": torch.nn.Identity,
    "ReLU": torch.nn.ReLU,
    "GELU": torch.nn.GELU,
    "SiLU": torch.nn.SiLU,
    "Sigmoid": torch.nn.Sigmoid,
}
VECTOR = "sentence_embedding"  # key of a text's vector, unlike those of its tokens


class DenseSpec(msgspec.Struct, frozen=True):
    """One layer before its weights. `adds_input`: a residual, projected for another width."""

    folder: str
    width_in: int
    width_out: int
    has_bias: bool
    activation: str
    adds_input: bool

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in its file."""
        found: dict[str, tuple[int, ...]] = {"linear.weight": (self.width_out, self.width_in)}
        if self.has_bias:
            found["linear.bias"] = (self.width_out,)
        if self.adds_input and self.width_in != self.width_out:
            found["residual.weight"] = (self.width_out, self.width_in)
        return found


def read_dense(folder: str, width: int, *, needs_weights: bool) -> DenseSpec:
    """Read the layer in `folder` after vectors of `width`, checked by headers alone. Raises ModelError."""
    file = Path(folder) / "config.json"
    config = read_json(file, dict)
    width_in = _count(file, config, "in_features")
    if width_in != width:
        raise ModelError(f"{file}: in_features={width_in}, and what comes in has {width} numbers")
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, VECTOR):
            raise ModelError(
                f"{file}: {name}={config[name]!r}; worker 'pooling' runs layers on the vector of a text, "
                f"{VECTOR!r}, and not on those of its tokens"
            )
    path = str(config.get("activation_function", DEFAULT_ACTIVATION))
    activation = path.rsplit(".", 1)[-1]
    if activation not in ACTIVATIONS or not path.startswith("torch.nn."):
        raise ModelError(
            f"{file}: activation_function={path!r}; worker 'pooling' knows torch.nn's "
            f"{', '.join(ACTIVATIONS)}"
        )
    spec = DenseSpec(
        folder=folder,
        width_in=width_in,
        width_out=_count(file, config, "out_features"),
        has_bias=config.get("bias", True) is not False,
        activation=activation,
        adds_input=config.get("use_residual") is True,
    )
    if needs_weights:
        _check_weights(spec)
    return spec


def _count(file: Path, config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{file}: {name}={value!r} must be a whole number above 0")
    return value


def _check_weights(spec: DenseSpec) -> None:
    path = Path(spec.folder) / WEIGHTS
    if not path.exists():
        raise ModelError(
            f"{path} is not there; a layer's weights are read from safetensors alone: save the model with "
            "sentence-transformers again"
        )
    found = read_headers(WeightFiles((path,), None))
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    for name in sorted(shapes.keys() | spec.shapes.keys()):
        if shapes.get(name) != spec.shapes.get(name):
            raise ModelError(
                f"{path}: tensor {name} is {shapes.get(name, 'not there')}, and its config.json says "
                f"{spec.shapes.get(name, 'that there is none')}"
            )


class Dense(torch.nn.Module):
    """f32[N, in] → f32[N, out]."""

    def __init__(self, spec: DenseSpec) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(spec.width_in, spec.width_out, spec.has_bias)
        self.residual: torch.nn.Module | None = None
        if spec.adds_input:
            same = spec.width_in == spec.width_out
            self.residual = (
                torch.nn.Identity()
                if same
                else torch.nn.Linear(spec.width_in, spec.width_out, bias=False)
            )
        self.activation = ACTIVATIONS[spec.activation]()

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors f32[N, in]."""
        made: torch.Tensor = self.activation(self.linear(vectors))
        return made if self.residual is None else made + self.residual(vectors)


def load_dense(
    specs: tuple[DenseSpec, ...], device: torch.device, *, seed: int | None
) -> torch.nn.Sequential:
    """The layers with their weights, or with random ones by `seed`. They compute in float32: one vector per text."""
    layers = []
    with seeded(seed or 0):
        for spec in specs:
            layer = Dense(spec)
            if seed is None:
                stored = load_file(Path(spec.folder) / WEIGHTS)
                layer.load_state_dict({name: value.float() for name, value in stored.items()})
            layers.append(layer)
    return torch.nn.Sequential(*layers).to(device).eval().requires_grad_(False)
