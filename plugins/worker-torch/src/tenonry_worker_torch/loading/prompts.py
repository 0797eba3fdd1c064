"""Prompts of the self check: contents, lengths, and chunks. Pure; worker process."""

from __future__ import annotations

from typing import Any

import torch

SHORT = (5, 9)
LONG = 33
LONGEST = 288  # tokens of the first prompt, preferably longer than a window or a chunk of the model
MARGIN = 15
REACH_NAMES = ("sliding_window", "attention_chunk_size", "window_size", "index_topk")


def numbered_tokens(count: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Different tokens, spread over the vocabulary: i64[count]."""
    numbers = torch.arange(1, count + 1) * 2654435761
    return (numbers % max(vocab_size, 1)).to(device)


def prompt_lengths(config: Any, max_model_len: int) -> list[int]:
    """Lengths of the prompts: one longer than any window, as far as that is cheap and the model allows, and two short
    ones. They follow from the config alone, so that all ranks come to the same.
    """
    reaches = [getattr(config, name, None) for name in REACH_NAMES]
    known = [reach for reach in reaches if isinstance(reach, int) and reach + MARGIN <= LONGEST]
    longest = min(max([0, *known]) + MARGIN, max_model_len)
    shortest = min(LONG, max_model_len)
    return [max(longest, shortest, *SHORT), *SHORT]


def steps_of(lengths: list[int]) -> list[list[int]]:
    """Number of tokens that each prompt computes in each step: the first one in two chunks and two single tokens, the
    second one alongside, and the third one, which enters last, with the first one's decoded tokens.
    """
    first, second, third = lengths
    chunk = first // 2 + 1
    return [
        [chunk, second - 1, 0],
        [first - 2 - chunk, 1, third - 2],
        [1, 0, 1],
        [1, 0, 1],  # the same rows again: a plan may continue the last one
    ]
