"""Serves a folder through a real engine in this process, in several ways, and compares with the oracle."""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from parity_zoo import oracle
from parity_zoo.oracle import Answer
from parity_zoo.prompts import MAX_MODEL_LEN, MAX_TOKENS, Prompts
from tenonry.errors import ErrorCode
from tenonry.kv_cache import paged

LOGPROB_TOLERANCE = 2e-3
GREEDY = {"temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True, "detokenize": False}
OUTCOMES = ("identical", "wrong", "crash", "refused")


class Outcome(msgspec.Struct):
    """Result of one type with one worker. `reason`: the rejection, the first difference, or the error."""

    kind: str
    reason: str = ""
    worker: str = ""
    way: str = ""
    preemptions: int = 0
    cached_tokens: int = 0


class CloseCall(Exception):
    """The oracle itself was undecided where the tokens first differ."""


@dataclasses.dataclass
class Run:
    """One engine over one folder."""

    folder: Path
    worker: str
    answers: dict[tuple[int, ...], Answer]
    settings: dict[str, Any]
    served_by: str = ""
    preemptions: int = 0
    cached_tokens: int = 0
    num_groups: int = 1  # KV groups, which share the blocks
    suspect: Answer | None = None  # the answer that was compared last

    def engine(self) -> Any:
        """An engine in this process."""
        from tenonry import LLM

        return LLM(
            model=str(self.folder), worker=self.worker, device="cpu", io_processor="none",
            max_model_len=MAX_MODEL_LEN, log_stats=False,
            **({"dtype": "float32", "max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 26} | self.settings),
        )  # fmt: skip

    def check(self, llm: Any, prompts: list[list[int]], **sampling: Any) -> str:
        """Serve the prompts in one batch; the first difference, or nothing. Raises CloseCall."""
        from tenonry import SamplingParams

        params = SamplingParams(**(GREEDY | sampling))
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
        for prompt, output in zip(prompts, outputs, strict=True):
            self.cached_tokens += output.num_cached_tokens
            if output.metrics is not None:
                self.preemptions += output.metrics.num_preemptions
            if output.error and output.error_code == ErrorCode.NO_PROMPT_LOGPROBS:
                continue
            if output.error:
                return f"prompt of {len(prompt)}: error: {output.error}"
            self.suspect = self.answers[tuple(prompt)]
            if found := prompt_difference(self.suspect, output.prompt_logprobs):
                return found
            for completion in output.outputs:
                if found := difference(self.suspect, completion):
                    return found
        return ""


def difference(answer: Answer, completion: Any) -> str:
    """First difference between a completion and the oracle's answer, or nothing. Raises CloseCall."""
    got = completion.token_ids
    where = f"prompt of {len(answer.prompt)}"
    for index, (wanted, token) in enumerate(zip(answer.token_ids, got, strict=False)):
        if wanted != token:
            if answer.gaps[index] < oracle.CLOSE:
                raise CloseCall(f"{where}, token {index}: gap {answer.gaps[index]:.1e}")
            return (
                f"{where}, token {index}: {token} instead of {wanted} (gap {answer.gaps[index]:.1e}); "
                f"got {got}, generate gives {answer.token_ids}"
            )
        if completion.logprobs:
            off = abs(completion.logprobs[index][token].logprob - answer.logprobs[index])
            if not off <= LOGPROB_TOLERANCE:  # also what is no number
                return f"{where}, token {index}: log-probability differs by {off:.1e}"
    if len(got) != len(answer.token_ids) and completion.stop_reason is None:
        return f"{where}: {len(got)} tokens instead of {len(answer.token_ids)}, {completion.finish_reason}"
    return ""


def prompt_difference(answer: Answer, logprobs: Any) -> str:
    """The first token of the prompt whose log-probability is another than the oracle's, or nothing."""
    known = zip(answer.prompt[1:], answer.prompt_logprobs, (logprobs or [])[1:], strict=False)
    for index, (token, wanted, got) in enumerate(known, start=1):
        off = abs(got[token].logprob - wanted)
        if not off <= LOGPROB_TOLERANCE:
            return f"prompt of {len(answer.prompt)}, its token {index}: log-probability differs by {off:.1e}"
    return ""


def mixed(run: Run, prompts: Prompts) -> Iterator[str]:
    """Mixed lengths in one batch; then a second batch in the same engine, with two completions of each prompt."""
    with run.engine() as llm:
        run.served_by = _served_by(llm, run.worker)
        run.num_groups = max(1, len(paged(llm.engine_core.kv_cache.groups)))
        yield run.check(llm, prompts.first, logprobs=1)
        yield run.check(llm, prompts.second, n=2)
        yield run.check(llm, prompts.second, prompt_logprobs=0)
        yield run.check(llm, prompts.first[::-1], stop_token_ids=_middle_tokens(run, prompts.first))


def chunked(run: Run, prompts: Prompts) -> Iterator[str]:
    """Prompts in chunks of a few tokens, together with decoding rows, and more requests than rows."""
    run.settings = {"max_num_seqs": 5, "max_num_batched_tokens": 7, "enable_prefix_caching": False}
    with run.engine() as llm:
        yield run.check(llm, prompts.first, logprobs=1)
        yield run.check(llm, prompts.second)


def shared(run: Run, prompts: Prompts) -> Iterator[str]:
    """A prefix that one request leaves in the cache and others find there; then the same prompts again."""
    run.settings = {"block_size": 4, "max_num_batched_tokens": 20}
    with run.engine() as llm:
        yield run.check(llm, prompts.shared[:1], logprobs=1)
        yield run.check(llm, prompts.shared[1:], logprobs=1)
        yield run.check(llm, prompts.shared + prompts.first)


def preempted(run: Run, prompts: Prompts) -> Iterator[str]:
    """Too few blocks for all rows: some are preempted and computed again."""
    run.settings = {
        "block_size": 7,
        "num_gpu_blocks_override": 11 * run.num_groups,
        "max_num_batched_tokens": 64,
    }
    run.settings["kv_cache_memory_bytes"] = None
    with run.engine() as llm:
        yield run.check(llm, prompts.first, logprobs=1)
        yield run.check(llm, prompts.shared)


def bfloat16(run: Run, prompts: Prompts) -> Iterator[str]:
    """Weights in bfloat16: it runs, and every log-probability is a number. Tokens may differ from float32's."""
    from tenonry import SamplingParams

    run.settings = {"dtype": "bfloat16", "max_num_batched_tokens": 20}
    with run.engine() as llm:
        params = SamplingParams(**(GREEDY | {"logprobs": 1}))
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts.first], params)
        for output in outputs:
            [completion] = output.outputs
            if output.error or len(completion.token_ids) != MAX_TOKENS:
                yield f"{len(completion.token_ids)} of {MAX_TOKENS} tokens: {output.error}"
            numbers = [each.logprob for step in completion.logprobs or [] for each in step.values()]
            if not all(math.isfinite(number) for number in numbers):
                yield f"prompt of {len(output.prompt_token_ids)}: a log-probability that is no number"


WAYS: dict[str, Callable[[Run, Prompts], Iterator[str]]] = {
    "mixed": mixed,
    "chunked": chunked,
    "shared": shared,
    "preempted": preempted,
    "bfloat16": bfloat16,
}


def outcome(
    name: str, folder: Path, worker: str, prompts: Prompts, answers: list[Answer]
) -> Outcome:
    """Serve in every way, up to the first that fails. Raises CloseCall."""
    from tenonry.errors import ModelError

    found = Outcome("identical", worker=worker)
    known = {tuple(answer.prompt): answer for answer in answers}
    num_groups = 1
    for title, way in WAYS.items():
        run = Run(folder, worker, known, {}, num_groups=num_groups)
        try:
            for wrong in way(run, prompts):
                if wrong:
                    if run.suspect and oracle.is_undecided(name, folder, run.suspect):
                        raise CloseCall(wrong)
                    return Outcome("wrong", wrong, run.served_by or found.worker, title)
        except CloseCall:
            raise
        except ModelError as error:
            if way is bfloat16:
                found.reason = f"in bfloat16 refused: {error}"
                continue
            return Outcome("refused", str(error), worker, title)
        except Exception as error:  # an outcome as well
            if way is bfloat16 and not oracle.runs_in(
                name, folder, torch.bfloat16, prompts.first[0]
            ):
                continue
            return Outcome("crash", _where(error), run.served_by or found.worker, title)
        num_groups = run.num_groups
        found.worker = run.served_by or found.worker
        found.preemptions += run.preemptions
        found.cached_tokens += run.cached_tokens
    return found


def _served_by(llm: Any, worker: str) -> str:
    """The worker that runs the model: the requested one, or the one that `auto` chose."""
    resolved = llm.engine_core.executor.resolved_plugins() if worker == "auto" else {}
    return str(resolved.get("worker", worker)).split()[0]


def _middle_tokens(run: Run, prompts: list[list[int]]) -> list[int]:
    """Tokens at which some requests stop while others continue."""
    return [run.answers[tuple(prompt)].token_ids[MAX_TOKENS // 2] for prompt in prompts[:2]]


def _where(error: BaseException) -> str:
    """The first error of the chain in one line, and the line of code that raised it."""
    while error.__cause__ is not None:
        error = error.__cause__
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:400]
    return f"{type(error).__name__}: {text} ({Path(last.filename).name}:{last.lineno})"
