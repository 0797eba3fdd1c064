"""Checks the flat inputs of a step, which real workers compute from, token by token. Worker process."""

from __future__ import annotations

import numpy as np

from tenonry.step import KNOWN_TO_WORKER, SchedulerOutput
from tenonry_scheduling.columns import BatchState, StepInputs
from tenonry_testkit.fakes.kv_store import FakeKVError

COLUMNS = (
    "row", "start", "num_tokens", "query_start_loc", "seq_lens", "positions", "token_ids", "token_row",
)  # fmt: skip


def check_inputs(state: BatchState, output: SchedulerOutput, inputs: StepInputs) -> None:
    """Raise FakeKVError unless every field of `inputs` follows from the step and the rows' tokens."""
    places: list[int] = []
    token_row: list[int] = []
    bounds = [0]
    rows = output.row.tolist()
    counts = output.num_tokens.tolist()
    ends = []
    for row, count in zip(rows, counts, strict=True):
        end = int(state.num_computed[row])
        ends.append(end)
        places += range(end - count, end)
        token_row += [row] * count
        bounds.append(len(places))
    wanted = {
        "row": rows,
        "start": [end - count for end, count in zip(ends, counts, strict=True)],
        "num_tokens": counts,
        "samples": output.samples.tolist(),
        "query_start_loc": bounds,
        "seq_lens": ends,
        "positions": places,
        "token_row": token_row,
        "token_ids": state.token_ids[token_row, places].tolist(),
    }
    for name, values in wanted.items():
        found = getattr(inputs, name)
        if found.tolist() != values:
            raise FakeKVError(f"step {output.step_id}: {name} is {found.tolist()}, not {values}")
    sampling = inputs.row[output.samples]
    behind = state.token_ids[sampling, inputs.seq_lens[output.samples]].tolist()
    if behind != [KNOWN_TO_WORKER] * len(sampling):
        raise FakeKVError(f"step {output.step_id}: it samples tokens that are {behind} already")
    for name in COLUMNS:
        dtype = getattr(inputs, name).dtype
        if dtype != np.int32:
            raise FakeKVError(f"step {output.step_id}: {name} is {dtype}, not int32")
