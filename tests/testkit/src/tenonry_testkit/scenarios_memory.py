"""Scenario of the scheduler suite: requests that have ended leave nothing behind in the scheduler. Test process."""

from __future__ import annotations

import gc
import types
from typing import Any

from tenonry.interfaces.kv_connector import KVConnector
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.step import Adapter
from tenonry_testkit.fakes.connector import STORES, MemoryOptions
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import KEEPS_NOTHING, expect
from tenonry_testkit.scenarios_blocks import memory_connectors
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.scenarios_passing import first_tokens
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import ANYTHING, media_of, prompt_of
from tenonry_testkit.traffic import Send as Ask

NUM_REQUESTS = 90
MOST_KEPT = 45  # of so many: a scheduler may remember a few
LONG_S = 10_000.0
STORE = "scheduler contract"
FOREIGN = (type, types.ModuleType, SchedulerContext, KVConnector)
SIZES: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "num_blocks": 60}
# Engines; requests with what the engine is for follow from its fields.
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two steps in flight": {"depth": 2},
    "adapters": {"config": (("max_loras", 2),)},
    "grammars": {"grammar_asks": 2},
    "images": {"config": (("max_images", 4), ("max_encoder_tokens", 6))},
    "loads": {},
    "images that wait": {"config": (("max_images", 4), ("max_encoder_tokens", 6))},
    "loads that fail": {"max_num_batched_tokens": 12},
}
LOADS: dict[str, dict[str, Any]] = {
    "loads": {},
    "loads that fail": {"asynchronous": True, "fail_loads": 10**9},
}


def nothing_is_kept(make_harness: MakeHarness) -> None:
    """Many requests end, by themselves, from outside and in the queue; of each, every mention must go.

    As many more, with the same prompts, add nothing.
    """
    for name, fields in ENGINES.items():
        spec = HarnessSpec(**{**SIZES, **fields})
        parts: dict[str, Any] = {}
        STORES.pop(STORE, None)
        try:
            if name in LOADS:
                options = MemoryOptions(store=STORE, **LOADS[name])
                filler = make_harness(
                    spec, connectors=memory_connectors(spec, MemoryOptions(store=STORE))
                )
                _add(filler, name, 0)
                filler.drain()
                parts["connectors"] = memory_connectors(spec, options)
            harness = make_harness(spec, **parts)
            _serve(harness, name)
            before = len(_reachable(harness.scheduler))
            _serve(harness, name)
            more = len(_reachable(harness.scheduler)) - before
            detail = "{}: {} objects more after {} further requests"
            expect(more <= MOST_KEPT, KEEPS_NOTHING, detail, name, more, NUM_REQUESTS)
        finally:
            STORES.pop(STORE, None)


def _serve(harness: SchedulerHarness, name: str) -> None:
    marks: dict[object, int] = {}
    for number in range(NUM_REQUESTS):
        entry = _add(harness, name, number)
        adapter = entry.request.source.adapter
        marks[entry.handle if adapter is None else adapter.name] = number
        if number % 9 == 4:
            harness.turn()
        if number % 9 == 8:
            harness.turn()
            leaving = harness.ledger.live[:: 1 if name == "images that wait" else 4]
            harness.abort([each.handle for each in leaving])
    harness.drain()
    harness.clock.advance(LONG_S)
    _add(harness, name, NUM_REQUESTS)
    harness.drain()
    kept = sorted(marks[each] for each in mentions(harness.scheduler) if each in marks)
    detail = "{}: of {} requests that ended, {} are still referred to: {} …"
    expect(len(kept) <= MOST_KEPT, KEEPS_NOTHING, detail, name, NUM_REQUESTS, len(kept), kept[:9])


def _add(harness: SchedulerHarness, name: str, number: int) -> Any:
    fields: dict[str, Any] = {}
    if name == "adapters":
        fields["adapter"] = Adapter(f"adapter-{number}", f"digest-{number}")
    if name == "grammars":
        fields["structured_output"] = ANYTHING
    if name.startswith("images"):
        fields["media"] = first_tokens(5) if name == "images that wait" else media_of((5, 4), 17)
    is_long = name in LOADS or "media" in fields
    prompt = prompt_of(Ask(family=number % 3, length=17 if is_long else 5), harness.spec)
    return harness.add(prompt, 1, client=1, **fields)


def mentions(scheduler: Scheduler) -> set[object]:
    """The integers and texts that a scheduler refers to, anywhere but in arrays, its context and its connector."""
    return {each for each in _reachable(scheduler).values() if isinstance(each, int | str)}


def _reachable(scheduler: Scheduler) -> dict[int, Any]:
    """Objects that a scheduler refers to, by their id."""
    seen: dict[int, Any] = {}
    stack: list[Any] = [scheduler]
    while stack:
        each = stack.pop()
        if id(each) in seen or isinstance(each, FOREIGN):
            continue
        seen[id(each)] = each
        if isinstance(each, types.FunctionType):  # not its module, which its globals are
            stack += [cell.cell_contents for cell in each.__closure__ or () if _is_full(cell)]
        else:
            stack += gc.get_referents(each)
    return seen


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
