"""Sampling defaults of a model: generation_config.json as fields of SamplingParams. Front end, at start.

Fields without a counterpart are named in one line of the log, unless they hold the value that changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from tenonry.errors import RequestError
from tenonry.sampling_params import MAX_LOGIT_BIAS, SamplingParams

logger = logging.getLogger("tenonry.models")

SAMPLED = ("temperature", "top_p", "top_k", "min_p")  # count only with do_sample
BAN = -100.0  # the lowest logit bias
# Fields of GenerationConfig that change an answer and have no counterpart, with values that change nothing.
NO_COUNTERPART: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "constraints": ([],),
    "guidance_scale": (1,),
    "typical_p": (1,),
    "top_h": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "watermarking_config": (),
    "token_healing": (False,),
    "stop_strings": ([],),
    "min_length": (0,),
}


def default_sampling(
    generation: dict[str, Any],
    *,
    vocab_size: int,
    end_ids: Collection[int] = (),
    own_rules: bool = False,
) -> dict[str, Any]:
    """Fields of SamplingParams that generation_config.json recommends; logs the ignored fields.

    An explicit `do_sample: false` is greedy decoding. Suppressed tokens and bad words of one token become logit biases.
    `end_ids` end a generation. `own_rules`: the worker runs the rules of an encoder-decoder model itself.
    """
    fields = {
        "repetition_penalty": generation.get("repetition_penalty"),
        "max_tokens": generation.get("max_new_tokens"),
    }
    if generation.get("do_sample") is True:
        fields |= {key: generation.get(key) for key in SAMPLED}
    elif generation.get("do_sample") is False:
        fields["temperature"] = 0.0
    if not own_rules:
        fields["min_tokens"] = generation.get("min_new_tokens")
        bans = Bans(vocab_size)
        bans.add(
            "suppress_tokens", [[token] for token in bans.entries(generation, "suppress_tokens")]
        )
        words = bans.entries(generation, "bad_words_ids")
        bans.add("bad_words_ids", [word for word in words if word not in [[i] for i in end_ids]])
        fields["logit_bias"] = dict.fromkeys(sorted(bans.token_ids), BAN) or None
        _report([*bans.ignored, *_without_counterpart(generation)])
    return _valid(fields)


class Bans:
    """Tokens that are never generated. `ignored` lists bans that logit biases cannot express."""

    def __init__(self, vocab_size: int) -> None:
        self.token_ids: set[int] = set()
        self.ignored: list[str] = []
        self._vocab_size = vocab_size

    def entries(self, generation: dict[str, Any], key: str) -> list[Any]:
        """The list of `key`; empty if absent or no list."""
        entries = generation.get(key)
        if isinstance(entries, list):
            return entries
        if entries is not None:
            self.ignored.append(f"{key}={entries!r:.80}")
        return []

    def add(self, key: str, words: list[Any]) -> None:
        """Ban the words of one token; ids outside the vocabulary are never generated anyway."""
        single = [word for word in words if isinstance(word, list) and len(word) == 1]
        if len(single) < len(words):
            self.ignored.append(f"{key} of several tokens")
        token_ids = {token for (token,) in single if type(token) is int}
        token_ids = {token for token in token_ids if 0 <= token < self._vocab_size}
        if len(self.token_ids | token_ids) > MAX_LOGIT_BIAS:
            self.ignored.append(f"{key} of {len(token_ids)} tokens (at most {MAX_LOGIT_BIAS})")
        else:
            self.token_ids |= token_ids


def _without_counterpart(generation: dict[str, Any]) -> list[str]:
    return [
        f"{key}={generation[key]!r:.80}"
        for key, neutral in NO_COUNTERPART.items()
        if generation.get(key) is not None and generation[key] not in neutral
    ]


def _report(ignored: list[str]) -> None:
    if ignored:
        logger.warning(
            "generation_config.json: ignoring %s; set sampling parameters in requests instead",
            ", ".join(ignored),
        )


def _valid(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if value is None:
            continue
        try:
            SamplingParams(**found, **{key: value})
        except RequestError as error:
            logger.warning("generation_config.json: %s; ignoring this default.", error)
        else:
            found[key] = value
    return found
