"""Choice of parsers by chat template. Front end, once per start."""

from __future__ import annotations

from collections.abc import Callable

from tenonry_output_parsers.base import OutputParser

REASONING = (
    "mistral-think",
    "seed-think",
    "gemma-think",
    "minimax-think",
    "minicpm-think",
    "apriel-think",
    "granite-think",
    "hunyuan-think",
    "think",
)
# Formats with markup of their own come before those that share it, and those without markup last.
CALLS = (
    "harmony",
    "cohere",
    "deepseek-v3.2",
    "deepseek-v4",
    "deepseek",
    "kimi",
    "mistral",
    "minimax",
    "seed-coder",
    "gemma",
    "functiongemma",
    "lfm2",
    "olmo",
    "minicpm",
    "nemotron",
    "apertus",
    "gigachat",
    "internlm",
    "phi",
    "granite",
    "granite-code",
    "functools",
    "qwen-coder",
    "glm",
    "tool-calls",
    "hermes",
    "functionary",
    "functionary-v3.2",
    "command-r",
    "pythonic",
    "llama",
)
WITH_REASONING = frozenset({"harmony", "cohere"})  # formats of calls that hold the reasoning, too


def recognised(template: str, find: Callable[[str], type[OutputParser]]) -> tuple[str, ...]:
    """Names of the first-party parsers for the model of this chat template, in the order in which they read.

    `find` returns the class of a name. Third-party parsers are never chosen here: being installed activates nothing.
    """
    calls = next((name for name in CALLS if find(name).recognises(template)), None)
    if calls in WITH_REASONING:
        return (calls,)
    reasoning = next((name for name in REASONING if find(name).recognises(template)), None)
    return tuple(name for name in (reasoning, calls) if name is not None)
