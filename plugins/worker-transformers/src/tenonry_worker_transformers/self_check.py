"""The self check at start: two requests in a batch must get the logits that `generate` computes for each alone.

It also detects the capabilities of the model's cache: prompts in chunks, rows of equal length in one batch, rows of any
length. Unverified ones are not used. Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.finite import require_finite
from tenonry_worker_transformers.pieces import Batcher, Batching, Piece
from tenonry_worker_transformers.trees import NotBatchable, state_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

    from tenonry_worker_transformers.generation import GenerateCalls

NUM_STEPS = 3
SHORT = 9
LONG = 17
LONGEST = 72  # a window up to this size is gone beyond
# Largest relative error (L2, per position) taken for rounding, as in worker `torch`.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
# What the prompts here are too short to show, besides rotary tables that follow the longest sequence: experts that take
# so many tokens of a batch and drop the others, and an index that keeps so many keys, where ties are broken by the
# shape of what is computed.
COMPUTED_WHOLE = ("expert_capacity", "index_topk")
MEASURED = (8, 24)  # prompt lengths between which the bytes of a token are measured


class Checked:
    """Detected capabilities: `chunks`, `batching`, `has_rules` (the generation config has any), `prompt_logits`
    (available for all positions of a prompt), and bytes of K/V and state.
    """

    __slots__ = (
        "batching",
        "bytes_per_token",
        "chunks",
        "has_rules",
        "prompt_logits",
        "state_bytes",
    )

    def __init__(self) -> None:
        self.chunks = False
        self.batching = Batching.NONE
        self.has_rules = False
        self.prompt_logits = False
        self.bytes_per_token = 0
        self.state_bytes = 0


class _Run:
    """One prompt and its reference from `generate`: `tokens` and `logits` [V] of `NUM_STEPS` steps."""

    def __init__(self, calls: GenerateCalls, prompt: torch.Tensor) -> None:
        self.calls = calls
        self.prompt = prompt
        made = calls.generate(
            prompt,
            max_new_tokens=NUM_STEPS,
            min_new_tokens=NUM_STEPS,
            return_dict_in_generate=True,
            output_logits=True,
        )
        self.tokens: list[int] = made.sequences[0, -NUM_STEPS:].tolist()
        self.logits: list[torch.Tensor] = [step[0] for step in made.logits]

    def start(self, row: int, cut: int = 0) -> tuple[Piece, torch.Tensor]:
        """A piece with the prompt, or all but the last `cut` tokens of it, and the last logits [V]."""
        prepared = self.calls.prepare(self.prompt, NUM_STEPS)
        count = prepared.input_ids.shape[1] - cut
        ids, logits, kwargs = self.calls.start(prepared, count)
        return Piece([row], ids, kwargs), logits[0, -1]

    def token(self, step: int) -> torch.Tensor:
        return torch.tensor([[self.tokens[step]]], device=self.prompt.device)


def check(calls: GenerateCalls, max_model_len: int) -> Checked:
    """Raises ModelError naming the architecture when requests would disturb each other."""
    found = Checked()
    measure(calls, found, max_model_len)
    lengths = _lengths(calls.module.config, max_model_len)
    runs = [_Run(calls, prompt) for prompt in prompts(calls, lengths)]
    require_finite(calls.module, runs[0].logits[0])
    _check_side_by_side(runs)
    found.prompt_logits = not calls.is_encoder_decoder and _works(_whole_prompt, runs[0])
    text = calls.module.config.get_text_config()
    if any(getattr(text, name, None) is not None for name in COMPUTED_WHOLE):
        return found
    if calls.follows_length:
        return found
    found.chunks = _works(_chunked, runs[0])
    if calls.takes_padding and _works(_batched, *runs):
        found.batching = Batching.MIXED
    elif _works(_batched_equal, *runs):
        found.batching = Batching.EQUAL
    return found


def measure(calls: GenerateCalls, found: Checked, max_model_len: int) -> None:
    """Measure the bytes of one token's K/V, at most, and of a request's state of constant size.

    The modules' own state is found in the first run; then everything is measured again with it.
    """
    _measure(calls, found, max_model_len)
    length = min(SHORT, max(1, max_model_len - 1))
    if calls.states.look(lambda prompt: _start(calls, prompt), prompts(calls, [length, length])):
        _measure(calls, found, max_model_len)


def _start(calls: GenerateCalls, prompt: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """A prompt's token ids, and the state of its run."""
    prepared = calls.prepare(prompt, NUM_STEPS)
    ids, _, kwargs = calls.start(prepared, prepared.input_ids.shape[1])
    return ids, kwargs


def _measure(calls: GenerateCalls, found: Checked, max_model_len: int) -> None:
    most = max(2, max_model_len - 1)
    lengths = [min(length, most + place - 1) for place, length in enumerate(MEASURED)]
    sizes = []
    for prompt in prompts(calls, lengths):
        prepared = calls.prepare(prompt, NUM_STEPS)
        found.has_rules = bool(prepared.processors)
        ids, _, kwargs = calls.start(prepared, prepared.input_ids.shape[1])
        piece = Piece([0], ids, kwargs)
        before = _bytes_of(piece, calls)
        calls.feed(piece, ids[:, -1:])
        sizes.append((before, _bytes_of(piece, calls) - before))
    apart = lengths[1] - lengths[0]
    of_prompt = max(0, -(-(sizes[1][0] - sizes[0][0]) // apart))
    of_output = max(0, min(grown for _, grown in sizes))
    found.bytes_per_token = max(of_prompt, of_output)
    found.state_bytes = max(0, sizes[1][0] - of_prompt * lengths[1])


def _bytes_of(piece: Piece, calls: GenerateCalls) -> int:
    try:
        return state_bytes(piece.kwargs)
    except NotBatchable as error:
        raise ModelError(
            f"{type(calls.module).__name__} cannot run on worker 'transformers': what it keeps between steps is not "
            f"understood: {error}"
        ) from error


def prompts(calls: GenerateCalls, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Different tokens i64[1, L] for each, spread over the vocabulary, none of them special."""
    config = calls.module.config
    vocab_size = int(config.get_text_config().vocab_size)
    special = {
        value
        for owner in (config, config.get_text_config())
        for name, value in owner.to_dict().items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    }
    spread = (
        number * 2654435761 % max(vocab_size, 1) for number in range(1, 10 * sum(lengths) + 10)
    )
    plain = [token for token in spread if token not in special]
    ids = torch.tensor((plain or [0]) * sum(lengths))[: sum(lengths)]
    return [part[None].to(calls.module.device) for part in ids.split(list(lengths))]


def _lengths(config: PretrainedConfig, max_model_len: int) -> list[int]:
    """Lengths of the long prompt, the short one, and a second one as long as the first."""
    text = config.get_text_config()
    windows = [
        int(getattr(text, name, None) or 0) for name in ("sliding_window", "attention_chunk_size")
    ]
    most = max(1, max_model_len - NUM_STEPS)
    long = min(max(LONG, *(size + 3 for size in windows if size + 3 <= LONGEST), 0), most)
    return [long, min(SHORT, long), long]


def _check_side_by_side(runs: list[_Run]) -> None:
    """Requests one by one, their steps interleaved."""
    runs = runs[:2]
    started = [run.start(row) for row, run in enumerate(runs)]
    got = [[logits] for _, logits in started]
    for step in range(NUM_STEPS - 1):
        for row, run in enumerate(runs):
            got[row].append(run.calls.feed(started[row][0], run.token(step))[0, -1])
    for run, logits in zip(runs, got, strict=True):
        if not agree(logits, run.logits):
            raise ModelError(
                f"{type(run.calls.module).__name__} fails the self check of worker 'transformers': two requests whose "
                "steps take turns get other logits than `generate` computes for each alone; --skip-model-check runs "
                "it anyway"
            )


def _chunked(run: _Run) -> bool:
    """Feed a prompt in chunks, or the decoder of an encoder-decoder model two tokens per call.

    Tries short equal chunks, and a last one of one token: some families fail in only one of the two.
    """
    if run.calls.is_encoder_decoder:
        piece, _ = run.start(0)
        both = torch.cat([run.token(0), run.token(1)], 1)
        return agree([run.calls.feed(piece, both)[0, -1]], run.logits[2:3])
    length = run.prompt.shape[1]
    third = length // 3
    if not third:
        return False
    return _in_chunks(run, [third, third]) and _in_chunks(run, [length // 2, 1])


def _in_chunks(run: _Run, later: list[int]) -> bool:
    """The prompt in chunks, the `later` ones of these lengths, and a token after it."""
    piece, _ = run.start(0, sum(later))
    for chunk in run.prompt[:, -sum(later) :].split(later, 1):
        logits = run.calls.feed(piece, chunk)[0, -1]
    after = run.calls.feed(piece, run.token(0))[0, -1]
    return agree([logits, after], run.logits[:2])


def _whole_prompt(run: _Run) -> bool:
    """Check the logits of every position of a prompt against the model's without `generate`."""
    prepared = run.calls.prepare(run.prompt, NUM_STEPS)
    _, logits, _ = run.calls.start(prepared, run.prompt.shape[1], all_logits=True)
    wanted = run.calls.module(run.prompt).logits
    return logits.shape[:2] == run.prompt.shape and agree([*logits[0]], [*wanted[0]])


def _batched(long: _Run, short: _Run, _equal: _Run) -> bool:
    """Rows of different length in one batch, the first of them a step ahead; then each alone again."""
    ahead, _ = long.start(0)
    long.calls.feed(ahead, long.token(0))
    return _together([(long, ahead, 1), (short, short.start(1)[0], 0)])


def _batched_equal(long: _Run, short: _Run, equal: _Run) -> bool:
    other = short if long.calls.is_encoder_decoder else equal
    return _together([(long, long.start(0)[0], 0), (other, other.start(1)[0], 0)])


def _together(entries: list[tuple[_Run, Piece, int]]) -> bool:
    """Feed all in one batch, then one alone, which was taken out of it. Entries: the run, its piece, its next step."""
    calls = entries[0][0].calls
    batcher = Batcher(calls.mask_name)
    piece = batcher.joined([piece for _, piece, _ in entries])
    tokens = torch.cat([run.token(step) for run, _, step in entries])
    first = calls.feed(piece, tokens)[:, -1]
    last, _, step = entries[1]
    alone = batcher.taken(piece, [1])
    second = calls.feed(alone, last.token(step + 1))[0, -1]
    wanted = [run.logits[step + 1] for run, _, step in entries]
    return agree([*first, second], [*wanted, last.logits[step + 2]])


def _works(trial: object, *runs: _Run) -> bool:
    """Return True if a method computes the right logits. One that raises is not used."""
    try:
        return bool(trial(*runs))  # type: ignore[operator]
    except Exception:  # noqa: BLE001 - any code of any family: what fails here is not done in serving
        return False


def agree(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    """Return True if the positions' median relative error (the larger of two) is within the type's tolerance."""
    errors = [_error(one, other) for one, other in zip(got, wanted, strict=True)]
    dtype = got[0].dtype
    return sorted(errors)[len(errors) // 2] <= TOLERANCE.get(dtype, TOLERANCE[torch.float32])


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    difference = (got.float() - wanted.float()).norm()
    error = difference / wanted.float().norm().clamp_min(1e-6)
    return float(torch.nan_to_num(error, nan=float("inf")))
