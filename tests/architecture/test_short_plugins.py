"""Reference plugins stay as short as the documentation promises: code of a class, without docstrings and comments."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest
from house import ROOT
from test_size import LAYOUT

LONGEST = {
    "schedulers/shortest-first/src/tenonry_policy_shortest_first/__init__.py:ShortestFirst": 10,
    "schedulers/deadline/src/tenonry_policy_deadline/__init__.py:Deadline": 10,
    # Its three numbers and the virtual time are state, which the others do not have.
    "schedulers/fair-share/src/tenonry_policy_fair_share/__init__.py:FairShare": 16,
    "schedulers/static/src/tenonry_scheduler_static/__init__.py:StaticScheduler": 15,
    "schedulers/prefill-first/src/tenonry_scheduler_prefill_first/__init__.py:PrefillFirstScheduler": 60,
    "schedulers/mlfq/src/tenonry_scheduler_mlfq/__init__.py:MlfqScheduler": 60,
    "docs/tutorial/packages/short-prompts/src/short_prompts/plugin.py:ShortPrompts": 60,
    # On the bare interface, without a library.
    "tests/integration/foreign/foreign_engine/scheduler.py:QueueScheduler": 150,
    "plugins/author-tools/src/tenonry_author_tools/templates/stat_logger/plugin.py.tmpl:$cls": 15,
    "stat_loggers/jsonl/src/tenonry_stat_logger_jsonl/__init__.py:JsonlStatLogger": 60,
    "stat_loggers/live/src/tenonry_stat_logger_live/__init__.py:LiveStatLogger": 60,
}


def code_lines(source: str) -> int:
    """Lines with code, without docstrings."""
    tree = ast.parse(source)
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    used = {token.start[0] for token in tokens if token.type not in LAYOUT}
    return len(used - docstrings)


def class_lines(target: str) -> int:
    """Lines of the body of "FILE:CLASS"."""
    file, name = target.replace("$", "").split(":")
    source = (ROOT / file).read_text("utf-8").replace("$", "")  # of templates
    (found,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return code_lines(ast.unparse(found)) - 1  # its first line


@pytest.mark.parametrize(("target", "longest"), LONGEST.items())
def test_class_is_short(target: str, longest: int):
    assert 0 < class_lines(target) <= longest


def test_counts_code_only():
    assert (
        code_lines('class A:\n    """One.\n\n    Two."""\n\n    x = 1  # three\n    # four\n') == 2
    )
