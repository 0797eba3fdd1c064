"""Two requests over a few steps of a real engine core with a fake worker, as a table.

`docs/explanation/steps.md` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
from tenonry_testkit.kernel.engine import make_core, request

TITLES = ("", "gone", "new", "row", "num_tokens", "next_token", "samples", "blocks", "result")


def brief(values: Any) -> str:
    return " ".join(str(int(value)) for value in values) or "·"


def new_rows(output: SchedulerOutput) -> str:
    """Each new row, with the first and last of its token ids."""
    texts = [f"{new.row}: {new.token_ids[0]}…{new.token_ids[-1]}" for new in output.new]
    return ", ".join(texts) or "·"


def blocks(output: SchedulerOutput) -> str:
    """Row ← block ids, of new rows and of rows that get more blocks."""
    texts = [f"{new.row}←{','.join(map(str, new.block_ids[0].tolist()))}" for new in output.new]
    grown = zip(output.new_block_row.tolist(), output.new_block_id.tolist(), strict=True)
    texts += [f"{row}←{block}" for row, block in grown]
    return " ".join(texts) or "·"


def result(answer: ModelRunnerOutput) -> str:
    offsets = answer.offsets.tolist()
    texts = [
        f"{row}→{','.join(map(str, answer.token_ids[start:end].tolist()))}"
        for row, start, end in zip(answer.row.tolist(), offsets[:-1], offsets[1:], strict=True)
    ]
    return " ".join(texts) or "·"


def describe(output: SchedulerOutput, answer: ModelRunnerOutput) -> list[str]:
    return [
        f"step {output.step_id}",
        brief(output.gone),
        new_rows(output),
        brief(output.row),
        brief(output.num_tokens),
        brief(output.next_token),
        brief(output.samples),
        blocks(output),
        result(answer),
    ]


def run(depth: int) -> list[list[str]]:
    """The steps of a request of eight prompt tokens and one of two, at most six tokens per step, `depth` in flight."""
    executor = {
        "name": "tenonry_testkit.fakes:InstantExecutor",
        "options": {"depth": depth, "late": depth > 1},
    }
    core = make_core(
        executor=executor,
        scheduler="batching",
        max_num_seqs=2,
        max_num_batched_tokens=6,
        max_model_len=16,
        block_size=4,
    )
    steps: list[tuple[SchedulerOutput, StepFuture]] = []
    execute = core.executor.execute_model

    def recorded(output: SchedulerOutput) -> StepFuture:
        future = execute(output)
        steps.append((output, future))
        return future

    core.executor.execute_model = recorded  # type: ignore[method-assign]
    core.add_request(request(1, range(11, 19), max_tokens=2))
    core.step()
    core.add_request(request(2, (31, 32), max_tokens=2))
    while core.has_work():
        core.step()
    core.shutdown()
    return [describe(output, future.result()) for output, future in steps]


def table(lines: Sequence[Sequence[str]]) -> str:
    """One column per value, one line per step."""
    rows = [TITLES, *lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(TITLES))]
    texts = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(texts) + "\n"
