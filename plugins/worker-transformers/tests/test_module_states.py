"""State that modules keep in attributes: detected after runs, and restored for each request."""

from __future__ import annotations

import torch
from torch import nn

from tenonry_worker_transformers.module_states import ModuleStates


class Keeper(nn.Module):
    """`state` depends on the prompt; `table` only on its length; `fixed` on nothing."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("counted", torch.zeros(1))
        self.state = None
        self.table = None
        self.fixed = torch.ones(2)
        self.start = torch.zeros(1)

    def forward(self, prompt):
        self.table = torch.arange(len(prompt))
        self.state = prompt.cumsum(0) if self.state is None else self.state + prompt
        self.start += prompt.sum()  # in place
        self.start = self.start + 0
        self.counted = self.counted + 1
        return self.state


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Keeper()
        self.second = nn.Sequential(Keeper())

    def forward(self, prompt):
        return self.second(self.first(prompt))


PROMPTS = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])]


def found():
    model = Whole()
    states = ModuleStates(model)
    model(PROMPTS[0])
    assert states.look(model, PROMPTS)
    return model, states


def test_only_what_depends_on_the_prompt_is_a_state():
    _, states = found()
    assert [place.name for place in states.places] == [
        "first.state", "first.start", "second.0.state", "second.0.start",
    ]  # fmt: skip


def test_two_requests_in_turns_see_their_own():
    model, states = found()
    kept = {}
    for name, prompt in zip("ab", PROMPTS, strict=True):
        states.put(None)
        model(prompt)
        kept[name] = states.taken()
    states.put(kept["a"])
    assert model.first.state.tolist() == [1.0, 3.0]
    model(PROMPTS[0])
    assert model.first.state.tolist() == [2.0, 5.0]
    states.put(kept["b"])
    assert model.first.state.tolist() == [3.0, 8.0]


def test_a_new_request_begins_where_no_run_has_been():
    """Also if a module writes into its initial tensor."""
    model, states = found()
    for _ in range(2):
        states.put(None)
        assert model.first.state is None
        assert model.first.start.tolist() == [0.0]
        model(PROMPTS[1])


def test_a_model_that_keeps_nothing_is_run_no_further():
    model = nn.Linear(2, 2)
    states = ModuleStates(model)
    ran = []
    assert not states.look(ran.append, PROMPTS)
    assert ran == []
    assert states.taken() == {}
