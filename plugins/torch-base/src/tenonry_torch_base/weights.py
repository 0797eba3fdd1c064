"""Architecture and weights of a causal language model, through transformers; no remote code, safetensors only.

Worker process.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import re
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_hf_hub import remote_code_note
from tenonry_torch_base.folder import read_config
from tenonry_torch_base.text_part import text_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PretrainedConfig, PreTrainedModel

    from tenonry_torch_base.checkpoint import Checkpoint

logger = logging.getLogger("tenonry.worker")


def read_model_config(path: str, architecture: str) -> PretrainedConfig:
    """Return the folder's configuration as a class of transformers, without running its code. Raises ModelError."""
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

    raw = read_config(Path(path) / "config.json")
    if raw.get("model_type") not in tuple(CONFIG_MAPPING):
        raise ModelError(_unknown(raw, path, architecture))
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        text = config.get_text_config()
    except Exception as error:  # its checks of values raise their own classes
        raise _bad_config(path, error) from error
    if not isinstance(text, PretrainedConfig):  # a mapping that no class reads
        raise ModelError(
            f"{path}/config.json has a part for text, such as text_config, which the model type "
            f"'{raw['model_type']}' does not have; correct model_type, or take the part out"
        )
    return config


def _unknown(raw: dict[str, Any], path: str, architecture: str) -> str:
    """Error text for an unknown model type, with the supporting release of transformers, if config.json names it."""
    import transformers

    installed = transformers.__version__
    kind = str(raw.get("model_type"))[:80]
    said = f"{architecture} in {path}: model type '{kind}' is not known to the installed transformers {installed}"
    if note := remote_code_note(raw):
        return f"{said}; {note}"
    written_by = raw.get("transformers_version")
    if isinstance(written_by, str) and _is_newer(written_by, installed):
        return f"{said}; it was saved by {written_by[:40]}: pip install 'transformers>={_release(written_by)}'"
    return (
        f"{said}, and code that comes with a model is never run; look for a release that knows it"
    )


def _is_newer(version: str, other: str) -> bool:
    return _numbers(version) > _numbers(other)


def _release(version: str) -> str:
    return ".".join(map(str, _numbers(version)))


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers at the front: (5, 30, 0) of "5.30.0.dev0"."""
    found = re.match(r"\d{1,6}(\.\d{1,6}){0,3}", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def _bad_config(path: str, error: Exception) -> ModelError:
    if isinstance(error, KeyError):  # a name that is looked up in a table
        name = error.args[0]
        places = list(_places_of(name, read_config(Path(path) / "config.json")))
        if places:
            return ModelError(
                f"{path}/config.json: {places[0]} is {name!r}, which the installed transformers does not know; "
                "correct it, or install a release that knows it"
            )
    message = " ".join(str(error).split())[:300]
    return ModelError(
        f"{path}/config.json does not describe a model: {type(error).__name__}: {message}"
    )


def _places_of(name: Any, config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys that have this text as their value."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _places_of(name, value, f"{prefix}{key}.")
        elif isinstance(name, str) and value == name:
            yield f"{prefix}{key}"


def skeleton(
    config: PretrainedConfig, architecture: str, path: str, *, towers: bool = False
) -> PreTrainedModel:
    """Build the model without storage, to inspect its layers; of a multimodal one the text part, or with `towers` all
    of it.

    Raises ModelError when there is no such model, or its config.json cannot be built.
    """
    try:
        builder = auto_class(config, towers=towers)
        if builder is None:
            raise ModelError(f"{architecture} is no causal language model of transformers")
        with torch.device("meta"):
            # A copy, since the search for towers changes it.
            model = builder.from_config(copy.deepcopy(config), trust_remote_code=False)
        return model if towers else text_part(model)
    except ModelError:
        raise
    except ImportError as error:
        raise ModelError(
            f"{architecture} needs a package that is not installed: {' '.join(str(error).split())[:200]}"
        ) from error
    except Exception as error:
        raise _bad_config(path, error) from error


def import_class(path: str, architecture: str) -> None:
    """Import the code that builds the model in a folder, without building it. Raises ModelError."""
    config = read_model_config(path, architecture)
    builder = auto_class(config)
    if builder is not None:
        builder._model_mapping[type(config)]  # noqa: SLF001 - imports it


def auto_class(config: PretrainedConfig, *, towers: bool = False) -> Any:
    """Auto class that builds a model of this configuration: as a causal model if there is one, else as a multimodal
    one; with `towers` the other way round.

    For a part of a wrapper without an entry of its own, the class that config.json names is returned; None if there is
    none.
    """
    import transformers

    # The last one came after the oldest release that is supported.
    names = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMultimodalLM")
    known = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    for auto in reversed(known) if towers else known:
        if type(config) in auto._model_mapping:  # noqa: SLF001
            return auto
    named = getattr(transformers, (config.architectures or [""])[0], None)
    if getattr(named, "config_class", None) is type(config) and named.can_generate():
        return _Named(named)
    return None


class _Named:
    """A class of transformers, built as its auto classes build one."""

    def __init__(self, model_class: Any) -> None:
        self._model_class = model_class

    def from_config(self, config: PretrainedConfig, **options: Any) -> PreTrainedModel:
        options.pop("trust_remote_code", None)
        model: PreTrainedModel = self._model_class._from_config(config, **options)  # noqa: SLF001
        return model


def stored_model(
    path: str,
    whole: PreTrainedModel,
    dtype: torch.dtype,
    architecture: str,
    checkpoint: Checkpoint,
    **build: Any,
) -> PreTrainedModel:
    """The model `whole`, made by `skeleton`, with its stored weights; tensors of other names are never read.

    `build`: options of its class.

    Raises ModelError when one is missing or has another shape.
    """
    options: dict[str, Any] = {
        "config": whole.config,
        "dtype": dtype,
        "ignore_mismatched_sizes": True,  # they are named below
        "output_loading_info": True,
        **build,
    }
    with weights_of(architecture, path), ExitStack() as open_files:
        # Not by its path: transformers would choose files by itself, and apply an adapter next to them.
        weights = checkpoint.slices(open_files)
        model, info = type(whole).from_pretrained(None, state_dict=weights, **options)
        _read_generation_config(model, path)
    check_complete(info, path, architecture)
    return model


def placed_on(device: torch.device) -> dict[str, Any]:
    """Options of a model's `from_pretrained` that put each tensor on the device as it is read, instead of the whole
    model in main memory first.
    """
    if device.type == "cpu":
        return {}
    if importlib.util.find_spec("accelerate") is None:
        logger.warning(
            "Reading the whole model into main memory before copying it to %s; pip install "
            "accelerate to copy single tensors",
            device,
        )
        return {}
    return {"device_map": {"": device}}


@contextmanager
def reserving_nothing() -> Iterator[None]:
    """Stops transformers from reserving memory for all weights as floats before it places them on a device: quantised
    ones take less.
    """
    from transformers import modeling_utils

    reserve = modeling_utils.caching_allocator_warmup
    modeling_utils.caching_allocator_warmup = lambda *_, **__: None
    try:
        yield
    finally:
        modeling_utils.caching_allocator_warmup = reserve


def _read_generation_config(model: PreTrainedModel, path: str) -> None:
    """As loading from a folder does."""
    from transformers import GenerationConfig

    if model.can_generate() and (Path(path) / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)


@contextmanager
def weights_of(architecture: str, path: str) -> Iterator[None]:
    """Any error on reading them becomes a ModelError that names model and folder; a device without memory stays one."""
    try:
        yield
    except (ModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"the weights of {architecture} in {path} cannot be loaded: {_first_line(error)}"
        ) from error


def check_complete(info: Any, path: str, architecture: str) -> None:
    """Raise ModelError naming missing or mismatched weights; `info`: the loading report of transformers."""
    for kind in ("missing_keys", "mismatched_keys"):
        if info.get(kind):
            names = ", ".join(str(key) for key in sorted(info[kind], key=str)[:3])
            raise ModelError(
                f"the weights in {path} do not fit {architecture}: {len(info[kind])} {kind}, such as {names}"
            )


@contextmanager
def progress_only_on_a_terminal() -> Iterator[None]:
    """Keep transformers quiet, and its progress bar out of log files."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
