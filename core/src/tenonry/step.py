"""One step on the wire. Engine and worker processes.

A *row* is the index of a running request, stable while it runs. A `SchedulerOutput` holds the changes and the work;
`tenonry_scheduling.columns` turns it into columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tenonry.errors import ErrorCode, RequestError
from tenonry.sampling_params import SamplingParams, StructuredOutput, check_count

I32 = NDArray[np.int32]
NO_ROWS: I32 = np.empty(0, np.int32)
NO_ROWS.setflags(write=False)
KNOWN_TO_WORKER = -1  # in `next_token`: the id was sent with the row, or the worker sampled it
MAX_NAME_CHARS = 256  # request id, cache salt, name and digest of an adapter
MAX_ARRAYS = 4096
MAX_ARRAY_BYTES = 1 << 28  # of the features of a request, or of its media


def check_arrays(field: str, arrays: Mapping[str, Any]) -> None:
    """Raise RequestError for too many arrays or bytes, and for anything but arrays of numbers or booleans."""
    check_count(field, arrays, MAX_ARRAYS)
    num_bytes = 0
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise RequestError(
                f"{field}: '{name:.80}' must be a numpy array of numbers or booleans, not {array!r:.40}",
                field,
            )
        num_bytes += array.nbytes
    if num_bytes > MAX_ARRAY_BYTES:
        raise RequestError(
            f"{field} has {num_bytes} bytes; at most {MAX_ARRAY_BYTES} are allowed", field
        )


class Adapter(msgspec.Struct, array_like=True, frozen=True):
    """An adapter of the model. `name` is for people; `digest` of its content: requests may share K/V only if it is
    equal.
    """

    name: str
    digest: str

    def __post_init__(self) -> None:
        if max(len(self.name), len(self.digest)) > MAX_NAME_CHARS:
            raise RequestError(f"adapter has more than {MAX_NAME_CHARS} characters", "adapter")

    def __hash__(self) -> int:
        return hash(self.digest)


class Media(msgspec.Struct, array_like=True, frozen=True):
    """Images, or other media, of a prompt: N of them, in order.

    `spans` i64[N, 2]: first prompt token of each, and number of tokens up to its last; others may stand among them.
    `digests` u8[N, 32]: of its content as read by the model, covered by block digests from its first token on.
    `inputs`: arrays for the model's encoder, by name. `whole` i64[M, 2]: in order, first token and number of tokens of
    pieces with bidirectional attention: no step ends inside one.
    """

    spans: NDArray[np.int64]
    digests: NDArray[np.uint8]
    inputs: list[dict[str, np.ndarray]]
    whole: NDArray[np.int64] = np.empty((0, 2), np.int64)

    def copied(self) -> Media:
        """Return a copy with its own containers and the same arrays."""
        return msgspec.structs.replace(self, inputs=[*map(dict, self.inputs)])


class NewRow(msgspec.Struct, array_like=True, kw_only=True):
    """A request that starts running in `row`, or comes back after preemption.

    `token_ids` i32[n]: prompt and, after them, `num_output` output tokens known so far. `num_computed` of them have K/V
    already (prefix cache or connector). `block_ids`: one i32 array per KV group, the row's blocks so far in order, any
    ids outside the window of a sliding group; for a recurrent group the initial state slot of the row, or nothing if
    `num_computed` is 0. `stop_token_ids`: all ids that end the request, for min_tokens; `bad_words`: token id
    sequences.
    """

    row: int
    handle: int
    token_ids: I32
    num_computed: int
    num_output: int
    block_ids: tuple[I32, ...]
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    adapter: Adapter | None = None
    features: dict[str, np.ndarray] | None = None
    media: Media | None = None


class SchedulerOutput(msgspec.Struct, array_like=True, kw_only=True):
    """One step: R rows are scheduled, B blocks are added to rows that already run.

    `gone` rows leave before the step, then `new` rows enter, then `new_block_*` extend block tables in order. For each
    i: `row[i]` computes `num_tokens[i]` tokens from its first uncomputed position on; `next_token[i]` is the id at that
    position, or −1 when the worker has it; `samples[i]` is true if the last position samples a token. `generation` is
    the scheduler's own stamp of each row, returned unchanged with the result. A "new block" of a recurrent group is a
    state slot, to which the row's state is copied after the step; rows that start from a slot read it before.
    `prepare`: requests, by handle, that will start when their grammar is compiled: its specification in the first step,
    None in later ones. `round_tokens` above 1 makes the step a round: every row decodes, has slots for that many
    tokens, and may sample that many, one after another. The worker may stop earlier, and stops a row at its end token.
    """

    step_id: int
    gone: I32 = NO_ROWS
    new: list[NewRow] = []
    row: I32 = NO_ROWS
    num_tokens: I32 = NO_ROWS
    next_token: I32 = NO_ROWS
    samples: NDArray[np.bool_] = np.empty(0, np.bool_)
    new_block_row: I32 = NO_ROWS
    new_block_group: I32 = NO_ROWS
    new_block_id: I32 = NO_ROWS
    generation: I32 = NO_ROWS
    total_tokens: int = 0
    connector_metadata: Any = None
    prepare: dict[int, StructuredOutput | None] = {}
    round_tokens: int = 1

    @property
    def is_empty(self) -> bool:
        """True if workers have nothing to do, except possibly KV transfers."""
        return not (len(self.row) or len(self.gone) or self.new or self.prepare)


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities of sampled tokens of L rows: column 0 is the sampled token, then the K most likely ones.

    A round has a line for each token of a row, in order.

    row i32[L], token_ids i32[L, K+1], logprobs f32[L, K+1], rank i32[L] (of the sampled token, 1 is best).
    """

    row: I32
    token_ids: I32
    logprobs: NDArray[np.float32]
    rank: I32


class PromptLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities of `len(rank)` prompt tokens of one row, the first at prompt position `start` (≥ 1)."""

    row: int
    start: int
    token_ids: I32
    logprobs: NDArray[np.float32]
    rank: I32


class ModelRunnerOutput(msgspec.Struct, array_like=True, kw_only=True):
    """The answer to one step: S rows sampled T tokens (ragged: row i owns `token_ids[offsets[i]:offsets[i+1]]`).

    `failed_row` / `failed_code` name failed rows (see `RowFailure`). `transfers_*` are handles whose KV connector
    transfer ended. `prepared`: completed handles of `prepare`. `pooled`: results of pooling requests by row, f32[D];
    their sampled tokens are ignored. `num_drafts`: drafts verified in one pass each, with `num_drafted` tokens in all,
    of which `num_accepted` were accepted.
    """

    step_id: int
    row: I32 = NO_ROWS
    offsets: I32 = np.zeros(1, np.int32)
    token_ids: I32 = NO_ROWS
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[PromptLogprobs] = []
    failed_row: I32 = NO_ROWS
    failed_code: I32 = NO_ROWS
    transfers_done: list[int] = []
    transfers_failed: list[int] = []
    prepared: list[int] = []
    pooled: dict[int, np.ndarray] = {}
    num_drafted: int = 0
    num_accepted: int = 0
    num_drafts: int = 0


class RowFailure:
    """Codes of `ModelRunnerOutput.failed_code`.

    `TEXT`: `error` of the FinishedOutput, by code. `CODE`: its `code`, only where it is not the default, "".
    """

    NUMERICAL = 1  # the row's logits hold NaN
    SAMPLING = 2  # the row's parameters leave no token to sample
    GRAMMAR = 3  # the row's grammar, alone or with its parameters, leaves no token to sample
    PROMPT_LOGPROBS = 4  # requested, but not supported by the model
    ADAPTER = 5  # the row's adapter is not loaded
    MEDIA = 6  # not accepted by the model's code

    TEXT: ClassVar[dict[int, str]] = {
        NUMERICAL: "the model produced NaN logits for this request",
        SAMPLING: "no token is left to sample under these sampling parameters",
        GRAMMAR: "no token is left to sample under this request's grammar and sampling parameters",
        ADAPTER: "the adapter of this request is not loaded, or was removed",
        MEDIA: "the media of this request do not fit the model",
        PROMPT_LOGPROBS: "prompt_logprobs: this model gives no log-probabilities of its prompt",
    }
    CODE: ClassVar[dict[int, str]] = {
        SAMPLING: ErrorCode.NO_TOKEN_LEFT,
        GRAMMAR: ErrorCode.NO_TOKEN_LEFT,
        PROMPT_LOGPROBS: ErrorCode.NO_PROMPT_LOGPROBS,
    }


class StepFuture(Protocol):
    """Result of `Executor.execute_model`: the output of one step, now or later."""

    def done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> ModelRunnerOutput: ...


class DoneFuture:
    """A StepFuture with its result."""

    __slots__ = ("_output",)

    def __init__(self, output: ModelRunnerOutput) -> None:
        self._output = output

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        return self._output
