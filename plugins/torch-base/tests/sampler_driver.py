"""A driver for the sampler, and a reference in plain Python, one row at a time."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import torch

from tenonry.step import NewRow
from tenonry_torch_base.sampler.processors import ProcessorContext, SampleStep
from tenonry_torch_base.sampler.sampler import Sampler

VOCAB = 40
ROWS = 8
LENGTH = 64


@contextlib.contextmanager
def two_threads():
    """torch has two threads, among which it shares large operations."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class SamplerDriver:
    """Drives a sampler row by row. `rows`: inputs of the reference functions below."""

    def __init__(self, vocab=VOCAB, extra=()):
        self.history = np.zeros((ROWS, LENGTH), np.int32)
        context = ProcessorContext(
            ROWS, vocab, torch.device("cpu"), torch.from_numpy(self.history), self.history
        )
        self.sampler = Sampler(context, extra=extra)
        self.rows = {}

    def enter(self, row, sampling, prompt=(1, 2, 3), output=(), stop=(), bad=()):
        tokens = np.array([*prompt, *output], np.int32)
        self.history[row, : len(tokens)] = tokens
        self.rows[row] = (sampling, list(prompt), list(output), stop, bad)
        self.sampler.enter(
            NewRow(
                row=row,
                handle=row + 1,
                token_ids=tokens,
                num_computed=0,
                num_output=len(output),
                block_ids=(np.empty(0, np.int32),),
                sampling=sampling,
                stop_token_ids=tuple(stop),
                bad_words=tuple(bad),
            )
        )

    def step(self, rows):
        rows = np.array(rows, np.int32)
        output = np.array([len(self.rows[int(row)][2]) for row in rows], np.int32)
        prompt = np.array([len(self.rows[int(row)][1]) for row in rows], np.int32)
        return SampleStep(rows, output, prompt + output)

    def sample(self, logits, rows):
        return self.sampler.sample(logits.clone(), self.step(rows))

    def accept(self, rows, sampled):
        for row, token in zip(rows, sampled.token_ids.tolist(), strict=True):
            _, prompt, output, _, _ = self.rows[row]
            self.history[row, len(prompt) + len(output)] = token
            output.append(token)


def processed_by_hand(logits, sampling, prompt, output, stop, bad):
    """The documented order, one row, plain Python."""
    values = [float(value) for value in logits]
    if sampling.allowed_token_ids is not None:
        values = [
            value if i in sampling.allowed_token_ids else -math.inf
            for i, value in enumerate(values)
        ]
    for word in bad:
        begin = word[:-1]
        if len(begin) <= len(output) and (
            not begin or tuple(output[-len(begin) :]) == tuple(begin)
        ):
            values[word[-1]] = -math.inf
    if len(output) < sampling.min_tokens:
        for token in stop:
            values[token] = -math.inf
    for token, bias in (sampling.logit_bias or {}).items():
        values[token] += bias
    for token in range(len(values)):
        count = output.count(token)
        if (count or token in prompt) and sampling.repetition_penalty != 1.0:
            penalty = sampling.repetition_penalty
            values[token] *= 1 / penalty if values[token] > 0 else penalty
        values[token] -= sampling.frequency_penalty * count
        values[token] -= sampling.presence_penalty * (count > 0)
    return values


def weights_by_hand(values, sampling):
    """Unnormalised probabilities after temperature, min_p, top_k and top_p, one row, plain Python."""
    scaled = [value / sampling.temperature for value in values]
    top = max(scaled)
    raw = [math.exp(value - top) for value in scaled]
    raw = [weight if weight >= sampling.min_p else 0.0 for weight in raw]
    if 0 < sampling.top_k < len(raw):
        limit = sorted(raw, reverse=True)[sampling.top_k - 1]
        raw = [weight if weight >= limit else 0.0 for weight in raw]
    total, mass, limit = sum(raw), 0.0, 0.0
    for weight in sorted(raw, reverse=True):
        if mass >= sampling.top_p * total:
            break
        mass, limit = mass + weight, weight
    return [weight if weight >= limit else 0.0 for weight in raw] if sampling.top_p < 1 else raw
