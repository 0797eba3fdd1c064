"""Decisions of `static`, and the claims of its README about size and behaviour."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import tenonry_scheduler_static
from tenonry_scheduler_static import StaticScheduler
from tenonry_testkit.harness import HarnessSpec, SchedulerHarness


def test_a_batch_runs_to_its_end_before_the_next_one_starts():
    harness = SchedulerHarness(StaticScheduler, HarnessSpec(max_num_seqs=2, num_blocks=20))
    for max_tokens in (2, 5, 1):
        harness.add([1, 2, 3], max_tokens=max_tokens)
    batches = []
    while harness.scheduler.requests:
        harness.launch()
        batches.append(harness.scheduler.rows.handle[harness.outputs[-1].row].tolist())
        harness.deliver()
    assert batches == [[1, 2], [1, 2], [2], [2], [2], [3]]
    harness.drain()


def test_a_batch_fills_one_step():
    harness = SchedulerHarness(
        StaticScheduler, HarnessSpec(max_num_batched_tokens=8, num_blocks=20)
    )
    for _ in range(3):
        harness.add([1, 2, 3, 4, 5], max_tokens=2)
    harness.launch()
    assert harness.outputs[-1].num_tokens.tolist() == [
        5,
        1,
        1,
    ]  # the second and third find what the first computes
    harness.deliver()
    harness.drain()


def test_it_is_as_small_as_it_says():
    source = inspect.getsource(tenonry_scheduler_static)
    assert len(source.splitlines()) <= 60
    readme = Path(__file__).parents[1].joinpath("README.md").read_text("utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert methods(shown) == methods(source)


def methods(source: str) -> list[str]:
    """The bodies of all methods of the scheduler, without annotations and docstrings."""
    (cls,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return [
        ast.unparse(ast.Module(node.body, [])) + str([arg.arg for arg in node.args.args])
        for node in cls.body
        if isinstance(node, ast.FunctionDef)
    ]
