"""Shared parts of the sub-verbs: types of flags, the engine's configuration, the report file. The measuring process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.info import ModelInfo
from tenonry.plugin.manager import PluginManager
from tenonry_commands.arguments import config_from_arguments

MAX_MODEL_LEN = 2048  # what peers are given, so that both size the same caches


def count(text: str) -> int:
    """A flag's value: an integer of at least 1."""
    number = natural(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def natural(text: str) -> int:
    """A flag's value: an integer of at least 0."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number


def counts(text: str) -> list[int]:
    """A flag's value: integers of at least 0, with commas between them."""
    return [natural(part) for part in text.split(",")]


def add_count_flags(parser: argparse.ArgumentParser, *flags: tuple[str, int, str]) -> None:
    """Add flags that take an integer of at least 1: each a name, a default, and the counted noun."""
    for flag, default, text in flags:
        parser.add_argument(
            flag, type=count, default=default, metavar="N", help=f"{text} [default: {default}]."
        )


def engine_config(args: argparse.Namespace, **defaults: Any) -> tuple[EngineConfig, ModelInfo]:
    """Configuration from the flags over `defaults`, and the model's facts.

    Sequences are as long as the model and 2048 tokens allow, unless `--max-model-len` is set.
    """
    for name, value in {"model": "demo", "log_stats": False, **defaults}.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    config = config_from_arguments(args)
    facts = PluginManager(config.plugins).resolve_model(config)
    if config.max_model_len is None:
        config = config_from_arguments(args, max_model_len=min(MAX_MODEL_LEN, facts.max_model_len))
    return config, facts


def refuse(args: argparse.Namespace, instead: dict[str, str]) -> None:
    """Raise ConfigError for an engine flag that the benchmark sets itself. `instead`: name to alternative."""
    for name, flag in instead.items():
        if getattr(args, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} is set by this benchmark; give {flag} instead"
            )


def check_length(config: EngineConfig, prompt_len: int, output_len: int) -> None:
    """Raise ConfigError unless a request of these lengths fits into a sequence."""
    longest = config.max_model_len or prompt_len + output_len
    if prompt_len + output_len > longest:
        raise ConfigError(
            f"prompts of {prompt_len} and outputs of {output_len} tokens need {prompt_len + output_len}, but "
            f"max_model_len is {longest}; ask for less, or give --max-model-len or a --model that has it"
        )


def settings_of(config: EngineConfig) -> dict[str, Any]:
    """The settings of an engine that differ from the defaults, for a report."""
    return config.model_dump(mode="json", exclude_defaults=True)


def write_report(path: str | None, report: msgspec.Struct) -> None:
    """Write a report as JSON, if a file was given. Raises ConfigError if it cannot be written."""
    if path is None:
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    except OSError as error:
        raise ConfigError(f"report {path} cannot be written: {error.strerror}") from None
