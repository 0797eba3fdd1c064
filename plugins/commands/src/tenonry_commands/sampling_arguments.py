"""Flags for sampling parameters, shared by the verbs that generate. Front end."""

from __future__ import annotations

import argparse
from typing import Any

from tenonry.sampling_params import SamplingParams

FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "Most tokens to generate."),
    ("min_tokens", int, "Fewest tokens before the model may stop."),
    ("temperature", float, "0 is greedy; higher is more random."),
    ("top_p", float, "Keep the likeliest tokens up to this share."),
    ("top_k", int, "Keep this many of the likeliest tokens; 0 keeps all."),
    ("min_p", float, "Drop tokens below this share of the likeliest."),
    ("presence_penalty", float, "Penalty for tokens that were generated before."),
    ("frequency_penalty", float, "Penalty per time a token was generated before."),
    ("repetition_penalty", float, "Divides the logits of tokens seen before."),
)


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag per common field of SamplingParams, `--stop` and `--ignore-eos`."""
    group = parser.add_argument_group("sampling")
    for name, kind, note in FLAGS:
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"sampling_{name}",
            type=kind,
            metavar=kind.__name__.upper()[:1],
            help=note,
        )
    group.add_argument(
        "--stop", dest="sampling_stop", action="append", metavar="TEXT", help="Stop at this text."
    )
    group.add_argument(
        "--ignore-eos",
        dest="sampling_ignore_eos",
        action="store_true",
        default=None,
        help="Continue after end-of-sequence tokens.",
    )


def sampling_from_arguments(args: argparse.Namespace, defaults: dict[str, Any]) -> SamplingParams:
    """SamplingParams from flags over `defaults`. Raises RequestError for a value out of bounds."""
    prefix = "sampling_"
    given = {
        name.removeprefix(prefix): value
        for name, value in vars(args).items()
        if name.startswith(prefix) and value is not None
    }
    return SamplingParams(**{**defaults, **given})
