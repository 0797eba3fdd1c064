"""Features see what the model computes: hidden states, accepted tokens; those that a model does not need are absent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import PluginOptions
from tenonry.sampling_params import SamplingParams
from tenonry.step import KNOWN_TO_WORKER, NewRow, SchedulerOutput
from tenonry_drafters.base import Drafter
from tenonry_worker_torch.runner.feature import RunnerFeature

RECORD = PluginRecord(kind="runner_feature", name="seen", target="tests:Seen")


class Seen(RunnerFeature):
    """Compares logits with those of the hidden states, and keeps the accepted tokens of each row."""

    name = "seen"
    needs_hidden = True

    def __init__(self, context):
        super().__init__(context)
        self.tokens = {}
        self.num_verified = 0

    def before_sampling(self, step):
        head = self.context.model.module.get_output_embeddings()
        expected = step.hidden @ head.weight.T
        torch.testing.assert_close(step.logits, expected, rtol=1e-4, atol=1e-4)

    def after(self, step):
        self.num_verified += step.verifies
        rows, lines = step.accepted()
        best = step.logits.argmax(-1)
        for row, line in zip(rows.tolist(), lines.tolist(), strict=True):
            self.tokens.setdefault(row, []).append(int(best[line]))


def watched(**options):
    model = worker_tools.loaded(worker_families.build("llama"), **options)
    runner = worker_tools.runner(model, features=[(Seen, RECORD)])
    return runner, runner.features.of(Seen)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("way", [{}, {"budget": 9}])
def test_logits_are_those_of_the_hidden_states(fuse, way):
    runner, seen = watched(fuse=fuse)
    requests = [
        Request(
            number + 1,
            prompt,
            max_tokens=12,
            sampling=SamplingParams(temperature=0.0, prompt_logprobs=number % 2 or None),
        )
        for number, prompt in enumerate(worker_tools.prompts())
    ]
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(requests)
    assert [request.output for request in requests] == worker_tools.generated("llama")
    assert sorted(seen.tokens.values()) == sorted(worker_tools.generated("llama"))


class Knows(Drafter):
    """Guesses the right token, then a wrong one."""

    def __init__(self, answer):
        self.answer = answer

    def enter(self, new):
        pass

    def propose(self, rows, histories, limits):
        done = len(histories[0]) - len(worker_tools.prompts()[0])
        guess = [*self.answer[done : done + 1], 5]
        return [np.array(guess, np.int32)[:limit] for limit in limits]

    def accept(self, row, count, accepted):
        pass

    def leave(self, row):
        pass


@pytest.mark.parametrize("most", [None, 2])
def test_accepted_tokens_are_those_that_were_verified(monkeypatch, most):
    """Also where a pass is computed in parts, since memory is short."""
    monkeypatch.setattr("tenonry_worker_torch.drafting.rounds.MAX_WAIT_S", 3600.0)
    monkeypatch.setattr("tenonry_drafters.controller.FIRST_CREDIT", 1e9)
    prompt = worker_tools.prompts()[0]
    wanted = worker_tools.generated("llama")[0]
    runner, seen = watched()
    runner.draft(Knows(wanted), 3)
    sizes = limited(runner.forward_pass, most or 99)
    new = NewRow(
        row=0, handle=1, token_ids=np.array(prompt, np.int32), num_computed=0, num_output=0,
        block_ids=(np.arange(16, dtype=np.int32),), sampling=SamplingParams(temperature=0.0),
    )  # fmt: skip
    runner.execute(step_of(0, len(prompt), new=[new]))
    for number in range(1, 4):
        runner.execute(step_of(number, 1, round_tokens=4))
    assert seen.num_verified
    assert max(sizes[1:]) > 2
    found = seen.tokens[0]
    assert found[: len(wanted)] == wanted[: len(found)]
    assert len(found) > 4


def limited(forward_pass, most):
    """A forward pass with memory for `most` tokens; returns the sizes of its passes."""
    forward = forward_pass.forward
    sizes = []

    def compute(inputs, *given):
        sizes.append(len(inputs))
        if len(inputs) > most:
            raise MemoryError(f"{len(inputs)} tokens")
        return forward(inputs, *given)

    compute.can_prune = forward.can_prune
    forward_pass.forward = compute
    return sizes


def step_of(number, num_tokens, **fields):
    return SchedulerOutput(
        step_id=number, row=np.zeros(1, np.int32), num_tokens=np.full(1, num_tokens, np.int32),
        next_token=np.full(1, KNOWN_TO_WORKER, np.int32), samples=np.ones(1, np.bool_),
        generation=np.zeros(1, np.int32), total_tokens=num_tokens, **fields,
    )  # fmt: skip


class Counts(RunnerFeature):
    """Counts tokens up to a limit of the user's."""

    name = "counts"

    class Options(PluginOptions):
        limit: int = 8


@pytest.mark.parametrize(("options", "limit"), [({}, 8), ({"limit": 3}, 3)])
def test_a_feature_has_the_options_of_its_user(options, limit):
    record = PluginRecord(
        kind="runner_feature", name="counts", target="tests:Counts", options=options
    )
    model = worker_tools.loaded(worker_families.build("llama"))
    runner = worker_tools.runner(model, features=[(Counts, record), (Seen, RECORD)])
    assert runner.features.of(Counts).options.limit == limit
    assert not hasattr(runner.features.of(Seen).options, "limit")


def test_features_that_a_model_does_not_need_are_absent():
    runner = worker_tools.runner(worker_tools.loaded(worker_families.build("llama")))
    assert [feature.name for feature in runner.features] == ["prompt_logprobs", "no_images"]
    assert len(runner.features.prepare) == 1
    assert not runner.features.before_sampling
    with pytest.raises(LookupError, match="no active feature Seen"):
        runner.features.of(Seen)
