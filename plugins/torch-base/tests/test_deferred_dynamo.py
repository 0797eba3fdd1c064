"""A package that is executed with its first use: `torch._dynamo`, in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from forked_programs import forked_programs

from tenonry_testkit.tiers import nightly_unless

pytestmark = pytest.mark.integration

BEGIN = """
import sys
from tenonry_torch_base.imports import importing
with importing():
    import torch
    import torch._dynamo
state = torch._dynamo.__dict__["_deferred"]
"""


# An attribute and an import: each executes the package, which takes seconds.
QUICK = {"torch._dynamo.config.cache_size_limit", "import torch._dynamo.eval_frame"}


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str], str]]:
    with forked_programs(BEGIN) as said:
        yield said


def test_a_model_of_transformers_is_imported_without_it(run):
    program = """
with importing():
    from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM
assert not state.is_executed
assert "torch._dynamo.convert_frame" not in sys.modules
assert "torch._inductor" not in sys.modules
"""
    run(program)


@pytest.mark.timeout(120)
@pytest.mark.nightly
def test_generate_of_transformers_is_what_it_is_without_us(run):
    """Masks use the placeholder of the context manager; the oracle is a plain import."""
    program = """
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
torch.manual_seed(0)
config = Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, sliding_window=4, use_sliding_window=True,
    max_window_layers=1, layer_types=["full_attention", "sliding_attention"])
model = Qwen3ForCausalLM(config).eval()
ids = torch.tensor([[5, 6, 7, 8, 9, 10], [0, 0, 5, 6, 7, 8]])
mask = (ids != 0).long()
print(model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False).tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run(program) == done.stdout


@pytest.mark.parametrize(
    "use",
    nightly_unless(
        lambda use: use in QUICK,
        [
            "torch._dynamo.config.cache_size_limit",
            "import torch._dynamo.eval_frame",
            "from torch._dynamo.utils import counters",
            "from torch._dynamo import *",
            "torch._dynamo.reset()",
            "torch._dynamo.disable(torch.nn.Linear(2, 2))",
            "torch.func.vmap(lambda x: x)(torch.zeros(2)); torch.compiler.reset()",
        ],
    ),
)
@pytest.mark.nightly_after(1)
def test_any_other_use_executes_it(run, use):
    program = f"""
before = torch._dynamo
{use}
assert state.is_executed
assert sys.modules["torch._dynamo"] is torch._dynamo is before
assert type(before) is type(sys)
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
assert isinstance(TransformGetItemToIndex, type)
"""
    run(program)


@pytest.mark.nightly
def test_a_process_group_does_not_execute_it(run, tmp_path):
    """It clears the caches of a package that has none yet. Ranks would import 700 modules for that."""
    program = f"""
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1)
assert not state.is_executed
dist.destroy_process_group()
rules = torch._dynamo.trace_rules
assert callable(rules.lookup)
assert state.is_executed
rules.clear_lru_cache()
"""
    run(program)


@pytest.mark.nightly
def test_no_submodule_is_executed_twice(run):
    program = """
import torch._dynamo.trace_rules as rules
from torch._dynamo import convert_frame
assert rules is torch._dynamo.trace_rules is convert_frame.trace_rules
assert rules.__spec__.name == "torch._dynamo.trace_rules"
assert type(rules.__spec__.loader).__name__ == "SourceFileLoader"
import importlib
importlib.reload(importlib.import_module("torch._dynamo.types"))
"""
    run(program)


@pytest.mark.nightly
def test_marks_arrive_with_the_package(run):
    program = """
@torch._dynamo.allow_in_graph
def allowed(x):
    return x

@torch._dynamo.assume_constant_result
def constant():
    return 1

assert allowed(2) == 2 and constant() == 1 and not state.is_executed
import torch._dynamo.trace_rules as rules
assert state.is_executed
assert constant._dynamo_marked_constant
assert rules.is_callable_allowed(allowed)
"""
    run(program)


def test_what_is_disabled_is_disabled_once_something_compiles(run):
    program = """
seen = []

@torch.compiler.disable
def eager(x):
    seen.append(torch.compiler.is_compiling())
    return x + 1

@torch.compiler.disable(recursive=False)
def shallow(x):
    return x * 2

assert eager.__name__ == "eager"
assert eager(torch.ones(1)).item() == 2
assert shallow(torch.ones(1)).item() == 2
assert not state.is_executed
compiled = torch.compile(lambda x: eager(x) * 3 + shallow(x), backend="eager")
assert compiled(torch.ones(1)).item() == 8
assert state.is_executed
assert seen == [False, False]
"""
    run(program)


@pytest.mark.nightly
def test_a_name_that_it_has_not(run):
    program = """
try:
    torch._dynamo.no_such_name
except AttributeError as error:
    assert "no attribute 'no_such_name'" in str(error)
else:
    raise AssertionError
assert not hasattr(torch._dynamo, "__no_such_name__")
"""
    run(program)
