"""The oracle: `generate` of transformers, greedy, float32, one prompt at a time."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from parity_zoo.build import auto_class_of
from parity_zoo.prompts import MAX_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLOSE = 1e-4
SELF_TOLERANCE = 1e-3
NUDGE = 1e-6  # relative; rounding in float32 is 6e-8, summed over layers
NUDGES = 4
TELLING = 4  # different tokens among those of one answer


class Answer(msgspec.Struct):
    """Answer of `generate` to one prompt.

    Per token: its log-probability, and the distance of the second best logit, in standard deviations of the logits. Per
    token of the prompt from the second on: its log-probability, if the model returns the logits of a whole prompt.
    """

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]
    gaps: list[float]
    prompt_logprobs: list[float] = []


def load(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of the type `name` as transformers reads it."""
    return auto_class_of(name).from_pretrained(folder, dtype=dtype).eval()


def runs_in(name: str, folder: Path, dtype: torch.dtype, prompt: list[int]) -> bool:
    """Return True if `generate` itself works with weights of this type."""
    try:
        answers(load(name, folder, dtype), [prompt])
    except Exception:  # whatever the family raises
        return False
    return True


def answers(model: PreTrainedModel, prompts: list[list[int]]) -> list[Answer]:
    """`generate` for each prompt alone, with nothing that would stop or steer it."""
    from transformers import GenerationConfig

    start = getattr(model.generation_config, "decoder_start_token_id", None)
    model.generation_config = GenerationConfig(
        pad_token_id=0, bos_token_id=1, decoder_start_token_id=start
    )
    # A copy each: modules of some families keep what a prompt left in them (RecurrentGemma).
    return [_answer(copy.deepcopy(model), prompt) for prompt in prompts]


@torch.inference_mode()
def _answer(model: PreTrainedModel, prompt: list[int]) -> Answer:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.cat(output.logits).float()
    token_ids = output.sequences[0, -MAX_TOKENS:]
    best = logits.topk(2, dim=-1).values
    logprobs = logits.log_softmax(-1).gather(1, token_ids[:, None])[:, 0]
    gaps = (best[:, 0] - best[:, 1]) / logits.std(-1)
    return Answer(
        prompt,
        token_ids.tolist(),
        logprobs.tolist(),
        gaps.tolist(),
        _prompt_logprobs(model, prompt),
    )


@torch.inference_mode()
def agrees_with_itself(model: PreTrainedModel, answer: Answer) -> bool:
    """Return True if the model without a cache yields the tokens of `generate` with one.

    If not, transformers is undecided, and a chunk of a prompt can follow only one of the two.
    """
    if model.config.is_encoder_decoder:
        return True
    sequence = torch.tensor([answer.prompt + answer.token_ids])
    logits = model(sequence, use_cache=False).logits.float()
    if logits.shape[1] != sequence.shape[1]:
        return True
    found = logits[0, len(answer.prompt) - 1 : -1].log_softmax(-1)
    chosen = found.gather(1, sequence[0, len(answer.prompt) :, None])[:, 0]
    return bool((chosen - torch.tensor(answer.logprobs)).abs().max() < SELF_TOLERANCE)


@torch.inference_mode()
def is_undecided(name: str, folder: Path, answer: Answer) -> bool:
    """Return True if changes of weights as small as rounding change the answer's log-probabilities.

    They do if a router or a selection of keys is at a tie, which the logits do not show.
    """
    model = load(name, folder)
    if model.config.is_encoder_decoder:
        return False
    sequence = torch.tensor([answer.prompt + answer.token_ids])
    plain = model(sequence, use_cache=False).logits.float().log_softmax(-1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(NUDGES):
        nudged = load(name, folder)
        for weight in nudged.parameters():
            noise = torch.empty_like(weight).normal_(0.0, NUDGE, generator=generator)
            weight.data.mul_(1 + noise)
        found = nudged(sequence, use_cache=False).logits.float().log_softmax(-1)
        if not (found - plain).abs().max() < SELF_TOLERANCE:
            return True
    return False


def _prompt_logprobs(model: PreTrainedModel, prompt: list[int]) -> list[float]:
    if model.config.is_encoder_decoder:
        return []
    logits = model(torch.tensor([prompt]), use_cache=False).logits
    if logits.shape[:2] != (1, len(prompt)):
        return []
    following = torch.tensor(prompt[1:], dtype=torch.long)[:, None]
    return logits[0, :-1].float().log_softmax(-1).gather(1, following)[:, 0].tolist()


def is_telling(found: list[Answer]) -> bool:
    """Return True if the tokens depend on the context: they change from place to place and from prompt to prompt."""
    several = [answer for answer in found if len(answer.prompt) > 1]
    changing = sum(len(set(answer.token_ids)) >= TELLING for answer in several)
    different = len({tuple(answer.token_ids) for answer in several})
    return changing * 10 >= 7 * len(several) and different * 10 >= 8 * len(several)
