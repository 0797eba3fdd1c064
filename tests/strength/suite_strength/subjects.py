"""The code that is mutated, and the suites that run it. Any process.

The validator of the scheduling library is left out: it is a part of the judge, which the harness of the suite runs
beside every scheduler, and no scheduler computes anything with it. So are transfers of ranks, which executors merge.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tenonry_author_tools.mutants import Mutant, mutants

SCHEDULERS = Path(__file__).parents[3] / "schedulers"
PACKAGES = {
    "scheduling": "tenonry_scheduling",
    "kvcache": "tenonry_kvcache",
    "batching": "tenonry_scheduler_batching",
    "static": "tenonry_scheduler_static",
}
LEFT_OUT = {"tenonry_scheduling.validator", "tenonry_kvcache.rank_transfers"}
# Tests that most likely notice a change of a module, by the end of its name: they come first, and none is left out.
CONCERNED = {
    "adapters": (
        "test_requests_that_cannot_share_a_step_take_turns",
        "test_a_step_has_at_most_max_loras_adapters",
        "test_limits_delay_only_what_exceeds_them",
    ),
    "budget": ("test_limits_delay_only_what_exceeds_them",),
    "chunks": ("test_limits_delay_only_what_exceeds_them",),
    "encoder": (
        "test_requests_that_cannot_share_a_step_take_turns",
        "test_a_step_encodes_at_most_max_encoder_tokens",
        "test_limits_delay_only_what_exceeds_them",
    ),
    "grammars": ("test_rows_with_a_grammar_wait_for_it_and_for_their_tokens",),
    "lookups": ("test_hits_are_those_that_requests_start_with",),
    "manager": (
        "test_prompts_that_ran_together_are_found",
        "test_loads_are_used_and_failed_ones_cost_little",
        "test_blocks_that_are_kept_for_ever_cost_no_request",
        "test_a_failing_connector_is_named",
    ),
    "policy": (
        "test_one_method_makes_a_policy",
        "test_a_failing_policy_is_named",
        "test_a_configuration_is_checked_before_the_start",
    ),
    "pool": (
        "test_prompts_that_ran_together_are_found",
        "test_the_prefix_cache_keeps_what_was_used_last",
    ),
    "prefix": ("test_prompts_that_ran_together_are_found",),
    "results": ("test_log_probabilities_belong_to_their_tokens", "test_stop_ids_end_requests"),
    "rounds": ("test_drafts_add_up", "test_right_in_rounds", "test_rounds_have_their_length"),
    "scheduler": (
        "test_a_configuration_is_checked_before_the_start",
        "test_blocks_that_are_kept_for_ever_cost_no_request",
        "test_requests_start_beside_running_ones",
    ),
    "settings": ("test_a_configuration_is_checked_before_the_start",),
    "snapshots": (
        "test_a_repeated_prompt_is_found",
        "test_prompts_that_ran_together_are_found",
        "test_the_prefix_cache_keeps_what_was_used_last",
        "test_a_snapshot_of_states_changes_no_token",
    ),
    "transfers": (
        "test_loads_are_used_and_failed_ones_cost_little",
        "test_blocks_that_are_kept_for_ever_cost_no_request",
        "test_a_failing_connector_is_named",
        "test_a_kv_connector_changes_no_token",
        "test_hits_are_those_that_requests_start_with",
        "test_a_kv_connector_suits_the_model",
    ),
    "whole": (
        "test_no_step_ends_in_a_piece_that_must_stay_whole",
        "test_limits_delay_only_what_exceeds_them",
    ),
    "windows": (
        "test_a_repeated_prompt_is_found",
        "test_prompts_that_ran_together_are_found",
        "test_a_window_changes_no_token",
    ),
}
SEED = 0
EQUIVALENTS = Path(__file__).with_name("equivalents.json")


class Subject(NamedTuple):
    """A mutant and the module that it replaces. `statement`: its line before the change."""

    module: str
    statement: str
    mutant: Mutant

    @property
    def key(self) -> tuple[str, str, str]:
        """Module, line and change, which stay the same when lines around them move."""
        return self.module, self.statement, self.mutant.text

    def __str__(self) -> str:
        return f"{self.module}:{self.mutant.line}: {self.mutant.text}"


def all_subjects() -> Iterator[Subject]:
    """All mutants of all modules, without those that are listed as equivalent."""
    equal = equivalents()
    for folder, package in PACKAGES.items():
        source = SCHEDULERS / folder / "src" / package
        for file in sorted(source.glob("*.py")):
            module = package if file.stem == "__init__" else f"{package}.{file.stem}"
            if module in LEFT_OUT:
                continue
            text = file.read_text("utf-8")
            lines = text.splitlines()
            for mutant in mutants(text):
                subject = Subject(module, lines[mutant.line - 1].strip(), mutant)
                if subject.key not in equal:
                    yield subject


def equivalents() -> dict[tuple[str, str, str], str]:
    """Reason by key, of mutants that behave as the original does in all that a suite can see."""
    rows = json.loads(EQUIVALENTS.read_text("utf-8"))
    return {(row["module"], row["line"], row["change"]): row["reason"] for row in rows}


def sampled(count: int, seed: int = SEED) -> list[Subject]:
    """Return `count` of all mutants, the same ones for the same seed, in the order of the sources.

    Each is drawn by its own key: a change of the sources, or one more equivalent, leaves the rest of the sample alone.
    """
    found = list(all_subjects())
    seen: Counter[tuple[str, str, str]] = Counter()
    ranks = []
    for subject in found:
        seen[subject.key] += 1
        ranks.append(sha256(repr((seed, *subject.key, seen[subject.key])).encode()).digest())
    drawn = sorted(range(len(found)), key=ranks.__getitem__)[:count]
    return [found[place] for place in sorted(drawn)]


def suites(module: str | None) -> list[type[Any]]:
    """The public suites of the schedulers that run a module; all for None. Imports what follows the change."""
    from hypothesis import Phase

    from suite_strength import authors, authors_batching
    from tenonry_scheduler_batching.scheduler import BatchingScheduler
    from tenonry_scheduler_static import StaticScheduler
    from tenonry_testkit.fakes import ReferenceScheduler
    from tenonry_testkit.scheduler import SchedulerContract

    class Fcfs(SchedulerContract):
        scheduler = BatchingScheduler
        policy = "tenonry_scheduler_batching.policies:FcfsPolicy"
        phases = (Phase.generate,)
        caches_prefixes = True
        is_continuous = True
        effort = 0.2

    class Brief(Fcfs):
        """Other options and schedulers, of which the tests that find most are run."""

        is_brief = True
        effort = 0.05

    class SmallShares(Brief):
        scheduler = authors_batching.BoundedScheduler
        is_continuous = False
        options: ClassVar = {
            "long_prefill_token_threshold": 3, "watermark": 0.75, "state_snapshot_interval": 1,
        }  # fmt: skip

    class Priority(Brief):
        policy = "tenonry_scheduler_batching.policies:PriorityPolicy"

    class Static(Fcfs):
        scheduler = StaticScheduler
        is_continuous = False
        policy = None
        effort = 0.05

    class Other(Brief):
        policy = None
        is_continuous = False

    class Reference(Other):
        """The blocks of the library's own interface, without a prefix cache."""

        scheduler = ReferenceScheduler
        caches_prefixes = None

    class OneByOne(Other):
        scheduler = authors.OneByOneScheduler

    class Careful(Other):
        scheduler = authors.CarefulScheduler

    class Admitting(Brief):
        is_continuous = False
        policy = f"{authors_batching.__name__}:AdmittingPolicy"

    if module is None:
        return [Fcfs, SmallShares, Priority, Admitting, Static, Reference, OneByOne, Careful]
    package = module.partition(".")[0]
    return {
        PACKAGES["static"]: [Static],
        PACKAGES["batching"]: [Fcfs, SmallShares, Priority, Admitting],
        PACKAGES["kvcache"]: [Fcfs, SmallShares],
    }.get(package, [Fcfs, SmallShares, Reference, OneByOne, Careful])
