"""A module that is executed once a size is a symbol, `torch.fx.experimental.symbolic_shapes`: in own processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from forked_programs import forked_programs

from tenonry_torch_base.deferred_shapes import ANSWERS

pytestmark = pytest.mark.integration

BEGIN = """
import sys
from tenonry_torch_base.imports import importing
with importing():
    import torch
    import torch.fx.experimental.symbolic_shapes as shapes
state = shapes.__dict__["_deferred"]
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str], str]]:
    with forked_programs(BEGIN) as said:
        yield said


def test_a_model_is_built_and_run_without_storage_and_without_algebra(run):
    program = """
with importing():
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM
    import torch.distributed.tensor
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, vocab_size=64)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(num_attention_heads=2, num_key_value_heads=1, **sizes))
        logits = model(torch.ones(1, 5, dtype=torch.long)).logits
print(tuple(logits.shape), logits.dtype, "sympy" in sys.modules, state.is_executed)
"""
    assert run(program).strip() == "(1, 5, 64) torch.float32 False False"


def test_an_operation_without_storage_refuses_what_it_does_with_the_real_one(run):
    program = """
def refusals():
    for left, right in (((3, 4), (5, 6)), ((2, 3, 4), (2, 5, 4))):
        for name in ("mm", "add", "cat"):
            given = [torch.empty(size, device="meta") for size in (left, right)]
            try:
                found = torch.cat(given) if name == "cat" else getattr(torch, name)(*given)
                yield name, tuple(found.shape)
            except (RuntimeError, AssertionError) as error:
                yield name, type(error).__name__, str(error)
with importing():
    before = list(refusals())
assert not state.is_executed
shapes.ShapeEnv
assert state.is_executed
print(before == list(refusals()), len(before), any(len(each) == 3 for each in before))
"""
    assert run(program).strip() == "True 6 True"


def test_answers_about_numbers_are_those_of_the_real_functions(run):
    program = f"names = {sorted(ANSWERS)!r}"
    program += """
numbers = [(True,), (False,), (1,), (1.5,), (True, False), (False, True, True), (2, 2), (2, 3)]
lists = [([1, 2], (1, 2)), ((1, 2), (1, 2, 3)), (torch.Size([4, 5]), torch.Size([4, 6]))]
others = [("a",), ((1, "a"), (1, "a")), (None,)]
def answers(functions):
    for name in names:
        for arguments in numbers + lists + others:
            try:
                found = functions[name](*arguments)
                yield name, arguments, type(found), found
            except Exception as error:
                yield name, arguments, type(error), str(error)
stand_ins = {name: getattr(shapes, name) for name in names}
assert stand_ins["expect_true"](True) is True
assert stand_ins["guard_or_false"](False) is False
assert stand_ins["sym_eq"]([1, 2], [1, 3]) is False
assert stand_ins["is_nested_int"](7) is False
assert stand_ins["sym_or"](False, True) is stand_ins["sym_and"](True, True) is True
assert not state.is_executed
shapes.ShapeEnv
assert all(getattr(shapes, name) is not stand_ins[name] for name in names)
of_ours, of_torch = list(answers(stand_ins)), list(answers(vars(shapes)))
print(len(of_ours), [pair for pair in zip(of_ours, of_torch) if pair[0] != pair[1]])
"""
    assert run(program).strip() == f"{14 * len(ANSWERS)} []"


def test_modules_that_had_bound_a_stand_in_have_the_real_one_afterwards(run):
    program = """
import types
module = types.ModuleType("third_party")
exec('''
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, guard_or_true, sym_eq
sym_eq = "something of its own"
''', vars(module))
assert not state.is_executed
assert issubclass(module.GuardOnDataDependentSymNode, RuntimeError)
shapes.ShapeEnv
print(
    module.GuardOnDataDependentSymNode is shapes.GuardOnDataDependentSymNode,
    module.guard_or_true is shapes.guard_or_true,
    module.sym_eq,
)
"""
    assert run(program).strip() == "True True something of its own"


def test_a_function_that_catches_the_error_has_the_real_one_at_once(run):
    """Its local binding cannot be replaced later."""
    program = """
def function():
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
    return GuardOnDataDependentSymNode
print(function() is shapes.GuardOnDataDependentSymNode, state.is_executed)
"""
    assert run(program).strip() == "True True"


def test_a_name_that_is_not_there_is_not_given(run):
    program = """
try:
    from torch.fx.experimental.symbolic_shapes import guard_or_perhaps
except ImportError as error:
    print(type(error).__name__, "guard_or_perhaps" in str(error))
print(hasattr(shapes, "__path__"))
"""
    assert run(program).splitlines() == ["ImportError True", "False"]


@pytest.mark.slow
@pytest.mark.nightly
def test_sizes_that_are_symbols_are_computed_with(run):
    """The exported program is run by torch with another size than the one that it was exported with."""
    program = """
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x, x * 2]).reshape(-1)
size = torch.export.Dim("size", min=2, max=64)
exported = torch.export.export(Model(), (torch.ones(3, 2),), dynamic_shapes={"x": {0: size}})
print(state.is_executed, exported.module()(torch.ones(5, 2)).shape)
"""
    assert run(program).strip() == "True torch.Size([20])"
