"""adapter_config.json of a peft folder: supported options, and the scale of an adapter. Worker process.

Names and meaning of the options: https://huggingface.co/docs/peft/package_reference/lora
"""

from __future__ import annotations

import math
from typing import Any

from tenonry.errors import ModelError

CONFIG_FILE = "adapter_config.json"
# Options without effect on the results of a trained adapter, for any value.
HARMLESS = frozenset(
    {
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
# Other ways to begin change the weights of the base model as well.
STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
MAX_RANK = 4096


class LoraOptions:
    """Rank and scale from `config`. Raises ModelError that names an unsupported option."""

    def __init__(self, config: dict[str, Any], architecture: str) -> None:
        self._check_kind(config, architecture)
        self._check_unsupported(config)
        self.rank = _integer(config, "r", MAX_RANK)
        self.alpha = _number(config.get("lora_alpha", 8), "lora_alpha")
        self._is_rslora = config.get("use_rslora") is True
        self._ranks = _pattern(config, "rank_pattern")
        self._alphas = _pattern(config, "alpha_pattern")

    def rank_of(self, module: str, stored: int = 0) -> int:
        """Return the rank of a layer of the model, named as in the adapter: of the first matching key, as in peft.

        peft sorts keys when it saves, so the key used in training may come later: then the first one with the rank of
        the tensors, `stored`, counts.
        """
        key = self._rank_key(module, stored)
        return self.rank if key is None else int(self._ranks[key])

    def scale_of(self, module: str, stored: int = 0) -> float:
        """Factor of the product of both matrices: alpha / r, or alpha / √r (https://arxiv.org/abs/2312.03732)."""
        rank = self.rank_of(module, stored)
        key = self._rank_key(module, stored)
        keys = _matching(self._alphas, module)
        if key not in keys or key == next(iter(_matching(self._ranks, module)), None):
            key = next(iter(keys), None)
        alpha = self.alpha if key is None else self._alphas[key]
        return alpha / (math.sqrt(rank) if self._is_rslora else rank)

    def _rank_key(self, module: str, stored: int) -> str | None:
        keys = _matching(self._ranks, module)
        fitting = [key for key in keys if self._ranks[key] == stored]
        return next(iter(fitting + keys), None)

    @staticmethod
    def _check_kind(config: dict[str, Any], architecture: str) -> None:
        kind = config.get("peft_type")
        if kind != "LORA":
            raise ModelError(
                f"peft_type={kind!r:.64}: only adapters of the type LORA are supported"
            )
        task = config.get("task_type")
        if task not in (None, "CAUSAL_LM"):
            raise ModelError(
                f"task_type={task!r:.64}: the adapter is not for generating text (CAUSAL_LM)"
            )
        mapping = config.get("auto_mapping")
        base = mapping.get("base_model_class") if isinstance(mapping, dict) else None
        if base not in (None, architecture):
            raise ModelError(
                f"base_model_class={base!r:.64}: the adapter was made for another model; this one is {architecture}"
            )

    @staticmethod
    def _check_unsupported(config: dict[str, Any]) -> None:
        bias = config.get("bias", "none")
        if bias not in ("none", None):
            raise ModelError(f"bias={bias!r:.64}: adapters that train biases are not supported")
        start = config.get("init_lora_weights", True)
        if start not in STARTS:
            raise ModelError(
                f"init_lora_weights={start!r:.64}: such an adapter changes the weights of the base model, too; convert "
                "it with peft to a plain LoRA (path_initial_model_for_weight_conversion)"
            )
        for name, value in config.items():
            if value and name not in HARMLESS:
                raise ModelError(f"{name}={value!r:.64} is not supported in adapters")


def _integer(config: dict[str, Any], name: str, most: int) -> int:
    value = config.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise ModelError(f"{name}={value!r:.64} must be an integer from 1 to {most}")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{name}={value!r:.64} must be a number")
    return float(value)


def _pattern(config: dict[str, Any], name: str) -> dict[str, float]:
    """Values for single layers, by the end of their names. Of the regular expressions of peft, only names are read."""
    found = config.get(name) or {}
    if not isinstance(found, dict):
        raise ModelError(f"{name}={found!r:.64} must be an object")
    for key, value in found.items():
        if not key.replace(".", "").replace("_", "").isalnum():
            raise ModelError(
                f"{name} has the regular expression {key!r:.64}; only names of layers are supported"
            )
        if _number(value, f"{name}[{key!r:.64}]") <= 0:
            raise ModelError(f"{name}[{key!r:.64}]={value!r:.64} must be above 0")
    return {key: float(value) for key, value in found.items()}


def _matching(pattern: dict[str, float], module: str) -> list[str]:
    """The keys that are the name of the layer, or the end of it, in order."""
    return [key for key in pattern if f".{module}".endswith(f".{key}")]
