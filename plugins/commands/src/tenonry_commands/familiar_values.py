"""Flags of vLLM's command line with values that mean settings of this engine: data and small functions. Front end.

Each function turns a value, as a flag or a YAML file has it, into settings by name. Raises ValueError with an
alternative, for a value that has no counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Settings = dict[str, Any]
GRAMMAR_BACKENDS = {
    "auto": None,
    "xgrammar": "xgrammar",
    "guidance": "llguidance",
    "llguidance": "llguidance",
}
POOLING_TASKS = frozenset({"embed", "embedding", "encode", "classify", "score", "pooling"})
POOLED: Settings = {"worker": "pooling"}
# Keys of --structured-outputs-config besides the backend and the parser → why only their defaults are taken.
_WHITE_SPACE = "JSON has a space or a line break where it may have white space"
OTHER_KEYS = {
    "disable_fallback": "there is no fallback to another backend; leave it out",
    "disable_any_whitespace": _WHITE_SPACE,
    "disable_additional_properties": "a schema says additionalProperties: false where it wants that",
    "enable_in_reasoning": "what an answer must look like holds after the reasoning",
    "reasoning_parser_plugin": "give --output-parser module:Class",
}
# Values that request the default behaviour.
DONE_ANYWAY: dict[str, tuple[Any, ...]] = {
    "generation_config": ("auto",),
    "override_generation_config": ("{}", {}),
    "tokenizer_mode": ("auto",),
    "config_format": ("auto", "hf"),
    "model_impl": ("auto",),
    "chat_template_content_format": ("auto",),
    "response_role": ("assistant",),
    "prefix_caching_hash_algo": ("sha256",),
    "mm_processor_kwargs": ("{}", "null", {}),
    "hf_overrides": ("{}", {}),
    "swap_space": ("0", 0),
    "cpu_offload_gb": ("0", 0),
    "num_scheduler_steps": ("1", 1),
    "logprobs_mode": ("raw_logprobs",),
    "max_num_partial_prefills": ("1", 1),
    "max_long_partial_prefills": ("1", 1),
    "lora_dtype": ("auto",),
    "decode_context_parallel_size": ("1", 1),
    "prefill_context_parallel_size": ("1", 1),
    "default_chat_template_kwargs": ("{}", {}),
    "media_io_kwargs": ("{}", {}),
}


def _mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object, `key=value` pairs separated by commas, or the mapping of a file."""
    if isinstance(value, Mapping):
        return value
    text = str(value).strip()
    if not text.startswith("{"):
        pairs = [pair.partition("=") for pair in text.split(",")]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError(f"{text!r:.80} is neither a JSON object nor key=value pairs")
        return {key.strip(): _scalar(entry) for key, _, entry in pairs}
    try:
        found: Mapping[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r:.80} is no JSON: {error}") from None
    return found


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def images(value: Any) -> Settings:
    """--limit-mm-per-prompt: a number per modality, or an object with its `count`."""
    settings: Settings = {}
    for name, entry in _mapping(value).items():
        count = entry.get("count", 0) if isinstance(entry, Mapping) else entry
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"{name}={count!r:.40} is no number of inputs")
        if name == "image":
            settings["max_images"] = count
        elif count:
            raise ValueError(
                f"{name}={count}: images are the only inputs besides text; give {name}=0"
            )
    return settings


def image_cache(value: Any) -> Settings:
    """--mm-processor-cache-gb, in GiB."""
    try:
        size = float(value)
    except (TypeError, ValueError):
        size = -1.0
    if not 0 <= size < 1 << 20:
        raise ValueError(f"{value!r:.40} is no size in GiB")
    return {"mm_cache_mib": round(size * 1024)}


def grammar_backend(value: Any) -> Settings:
    """--guided-decoding-backend."""
    if value not in tuple(GRAMMAR_BACKENDS):
        raise ValueError(
            f"{value!r:.40} is not served: {', '.join(GRAMMAR_BACKENDS)} are, and --grammar-backend names others"
        )
    backend = GRAMMAR_BACKENDS[value]
    return {} if backend is None else {"grammar_backend": backend}


def structured_outputs(value: Any) -> Settings:
    """--structured-outputs-config."""
    settings: Settings = {}
    for name, entry in _mapping(value).items():
        if name == "backend":
            settings |= grammar_backend(entry)
        elif name == "reasoning_parser":
            settings |= {"reasoning_parser": entry} if entry else {}
        elif name not in OTHER_KEYS:
            raise ValueError(
                f"{name!r:.40} is none of its keys: backend, reasoning_parser, {', '.join(OTHER_KEYS)}"
            )
        elif entry:
            raise ValueError(f"{name}: {OTHER_KEYS[name]}")
    return settings


def task(value: Any) -> Settings:
    """--task. A model that cannot generate pools by itself; others do with the worker `pooling`."""
    if value in ("auto", "generate"):
        return {}
    if isinstance(value, str) and value in POOLING_TASKS:
        return POOLED
    raise ValueError(
        f"{value!r:.40} is not served: auto, generate, {', '.join(sorted(POOLING_TASKS))} are"
    )


def runner(value: Any) -> Settings:
    """--runner."""
    if value in ("auto", "generate"):
        return {}
    if value == "pooling":
        return POOLED
    raise ValueError(f"{value!r:.40} is not served: auto, generate and pooling are")


def convert(value: Any) -> Settings:
    """--convert."""
    if value in ("auto", "none"):
        return {}
    if value == "embed":
        return POOLED
    raise ValueError(
        f"{value!r:.40}: a head for scores comes with the model; auto, none and embed are served"
    )


TRANSLATED: dict[str, Callable[[Any], Settings]] = {
    "limit_mm_per_prompt": images,
    "mm_processor_cache_gb": image_cache,
    "guided_decoding_backend": grammar_backend,
    "structured_outputs_config": structured_outputs,
    "task": task,
    "runner": runner,
    "convert": convert,
}
# Flags such as --limit-mm-per-prompt.image 2.
KEYS: dict[str, tuple[str, ...]] = {
    "limit_mm_per_prompt": ("image", "video", "audio"),
    "structured_outputs_config": ("backend", "reasoning_parser", *OTHER_KEYS),
}


def with_key(name: str, key: str, value: str) -> Settings:
    """The settings that a flag with a key means."""
    return TRANSLATED[name]({key: _scalar(value)})
