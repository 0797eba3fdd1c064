"""Names in back-ticks, on every page, are names of the code; calls in back-ticks would not be a TypeError."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from page_names import (
    DOTTED,
    IDENTIFIER,
    ROOT,
    binds,
    definitions,
    exists,
    known_words,
    pages,
    parse_call,
    sources,
    spans,
)

PAGES = pages()
# A misspelling that the settings page explains.
ON_PURPOSE = {"TENONRY_MAX_NUM_SEQ"}
# The changelog names what was removed.
HISTORY = {"CHANGELOG.md"}
# The first column of its tables has names of vLLM.
PORTING = {"port-from-vllm.md"}
FIRST_COLUMN = re.compile(r"^\|[^|]*\|", re.MULTILINE)
QUOTED = re.compile(r"""["'](tenonry(?:\.\w+)+)(\.?)["'{]""")
# The generated page of interfaces lists the entry-point groups, some of which are composed.
GROUP = re.compile(r"^\| [\w ]+ \| `(tenonry\.\w+)` \|", re.MULTILINE)
CAMEL = re.compile(r"([A-Z][a-z0-9]+){2,}|[A-Z]\w*[a-z]\w*[A-Z]\w*")


@functools.cache
def literals() -> tuple[frozenset[str], frozenset[str]]:
    """Names in strings of the code (groups, loggers, attributes), and those that are continued with a dot."""
    texts = [file.read_text(encoding="utf-8") for file in sources()]
    found = [match for text in texts for match in QUOTED.findall(text)]
    names = {name for name, dot in found if not dot}
    groups = GROUP.findall(
        (ROOT / "docs" / "reference" / "interfaces.md").read_text(encoding="utf-8")
    )
    return frozenset(names.union(groups)), frozenset(name for name, dot in found if dot)


def is_wrong_name(text: str) -> bool:
    """Return True if a dotted name of ours cannot be resolved, or the code does not contain the name."""
    name = text.removesuffix("()")
    if DOTTED.fullmatch(name):
        first = name.split(".")[0]
        is_ours = first.startswith("tenonry") or (first in definitions() and first[0].isupper())
        names, beginnings = literals()
        is_literal = name in names or name.rpartition(".")[0] in beginnings
        return is_ours and not is_literal and not exists(name)
    if not IDENTIFIER.fullmatch(name) or name in ON_PURPOSE:
        return False
    is_variable_of_others = name.isupper() and not name.startswith("TENONRY_")
    is_name = "_" in name.strip("_") or CAMEL.fullmatch(name)
    return bool(is_name) and not is_variable_of_others and not is_known(name)


def is_known(name: str) -> bool:
    """Return True if the name is a word of the code, or the variable of a setting."""
    setting = name.removeprefix("TENONRY_").lower() if name.isupper() else name
    return name in known_words() or setting in known_words()


def is_wrong_call(text: str) -> bool:
    call = parse_call(text)
    return call is not None and binds(call) is False


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_names_on_a_page_exist(page):
    if page.name in HISTORY:
        return
    texts = spans(page, FIRST_COLUMN) if page.name in PORTING else spans(page)
    assert sorted({text for text in texts if is_wrong_name(text)}) == []


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_calls_on_a_page_bind(page):
    if page.name in HISTORY:
        return
    assert sorted({text for text in spans(page) if is_wrong_call(text)}) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("tenonry.client.async_llm", False),
        ("tenonry.AsyncLLM.generate", False),
        ("tenonry.info.EngineInfo.num_gpu_blocks", False),
        ("tenonry.schedulers", False),
        ("tenonry.no_such_module", True),
        ("tenonry.config.EngineConfig.no_such_field", True),
        ("EngineConfig.max_num_seqs", False),
        ("EngineConfig.max_sequences", True),
        ("Async" + "EngineOfSomebody", True),
        ("plan_kv_cache", False),
        ("no_such_" + "function", True),
        ("some words", False),
        ("--flag", False),
    ],
)
def test_a_wrong_name_is_found(text, wrong):
    assert is_wrong_name(text) is wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("AsyncLLM(config)", False),
        ("AsyncLLM(config, coordinated=True)", True),
        ("AsyncLLM(config, engines=…)", False),
        ("AsyncLLM.scale(size)", False),
        ("AsyncLLM.scale(size, when=1)", True),
        ("choose(step)", False),
        ("choose()", False),
        ("choose(1, 2, 3)", True),
        ("print(1, 2)", False),
    ],
)
def test_a_call_that_does_not_bind_is_found(text, wrong):
    assert is_wrong_call(text) is wrong
    assert isinstance(ast.parse(text.replace("…", "...")).body[0], ast.Expr)
