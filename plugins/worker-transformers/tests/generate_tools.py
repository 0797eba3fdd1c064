"""Reference answers of `generate`, and a real engine around the worker. Tests only."""

from __future__ import annotations

import functools
import random
import weakref
from typing import Any

import generate_families as families
import torch

from tenonry import LLM, SamplingParams
from tenonry_torch_base.cache_argument import CACHE_ARGUMENTS

MAX_TOKENS = 10
MAX_MODEL_LEN = 64
LENGTHS = (3, 14, 1, 9, 9, 21)
GREEDY = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "ignore_eos": True, "detokenize": False}


def prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(8, families.VOCAB) for _ in range(length)] for length in lengths]


@functools.cache
def generated(
    family: str, seed: int = 0, *, lengths: tuple[int, ...] = LENGTHS, max_tokens: int = MAX_TOKENS
) -> list[list[int]]:
    """Greedy, one prompt at a time, with the model's own generation config."""
    return [answer for answer, _ in _generate(family, seed, lengths, max_tokens)]


@functools.cache
def logprobs(family: str, seed: int = 0) -> list[torch.Tensor]:
    """log_softmax of the model's own logits at each of the tokens, [MAX_TOKENS, vocabulary]."""
    return [values for _, values in _generate(family, seed, LENGTHS, MAX_TOKENS)]


@functools.cache
def _generate(
    family: str, seed: int, lengths: tuple[int, ...], max_tokens: int
) -> list[tuple[list[int], torch.Tensor]]:
    model = families.stored(family)
    found = []
    for prompt in prompts(lengths, seed):
        if family in families.FORGETFUL:
            model = families.stored(family)
        ids = torch.tensor([prompt])
        count = min(max_tokens, MAX_MODEL_LEN - len(prompt))
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=count,
            eos_token_id=[],
            return_dict_in_generate=True,
            output_logits=True,
        )
        answer = made.sequences[0, -count:].tolist()
        found.append((answer, torch.cat(made.logits).log_softmax(-1)))
    return found


def engine(family: str, **settings: Any) -> LLM:
    return LLM(
        model=families.folder(family),
        io_processor="none",
        device="cpu",
        dtype="float32",
        log_stats=False,
        **(
            {"worker": "transformers", "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 4} | settings
        ),
    )


def served(llm: LLM, wanted: list[list[int]], **sampling: Any) -> list[Any]:
    params = SamplingParams(**(GREEDY | sampling))
    return llm.generate([{"prompt_token_ids": prompt} for prompt in wanted], params)


def served_each(llm: LLM, wanted: list[list[int]], max_tokens: tuple[int, ...]) -> list[Any]:
    """Each prompt with its own number of tokens."""
    params = [SamplingParams(**(GREEDY | {"max_tokens": count})) for count in max_tokens]
    return llm.generate([{"prompt_token_ids": prompt} for prompt in wanted], params)


def tokens(outputs: list[Any]) -> list[list[int]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [list(completion.token_ids) for output in outputs for completion in output.outputs]


def worker_of(llm: LLM) -> Any:
    """The worker inside an engine of this process."""
    return llm.engine_core.executor._worker


def decoding_calls(llm: LLM) -> list[tuple[int, int]]:
    """Number of rows of each later decoding call, and their positions before it."""
    calls = worker_of(llm).model.calls
    found: list[tuple[int, int]] = []
    feed = calls.feed

    def counted(piece: Any, token_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        found.append((len(token_ids), piece.length))
        return feed(piece, token_ids, **options)

    calls.feed = counted
    return found


def kept_pieces(calls: Any) -> list[weakref.ref[Any]]:
    """A weak reference to the cache of every request that starts from now on."""
    found: list[weakref.ref[Any]] = []
    start = calls.start

    def watched(prepared: Any, count: int, **options: Any) -> Any:
        [cache] = [prepared.kwargs[name] for name in CACHE_ARGUMENTS if name in prepared.kwargs]
        found.append(weakref.ref(cache))
        return start(prepared, count, **options)

    calls.start = watched
    return found
