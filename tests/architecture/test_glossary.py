"""The glossary has the words that a reader of this code needs, in order, each once, each explained in a few lines."""

from __future__ import annotations

import re

from house import ROOT

PAGE = ROOT / "docs" / "reference" / "glossary.md"
ENTRY = re.compile(r"^\*\*([^*]+)\*\*: (.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
NEEDED = {
    "admission", "block", "block hash", "block table", "capability", "chunked prefill", "client", "column",
    "conformance suite", "connector", "coordinator", "decode", "depth", "drain", "dummy step", "engine",
    "entry point", "epoch", "evict", "executor", "extension point", "free", "front end", "generation", "handle",
    "heartbeat", "hook", "hook module", "hub", "interface", "interface version", "IO processor", "kernel",
    "KV cache", "KV group", "launcher", "lifeline", "load balancer", "lockstep", "pending token", "plan",
    "plugin", "point", "policy", "preempt", "prefill", "prefix cache", "rank", "row", "run directory",
    "scheduler", "slot", "stat logger", "stay", "step", "supervisor", "terminal outcome", "transfer",
    "validator", "wave", "worker",
}  # fmt: skip


def entries() -> list[tuple[str, str]]:
    return ENTRY.findall(PAGE.read_text(encoding="utf-8"))


def test_needed_words_are_explained():
    assert NEEDED - {term for term, _ in entries()} == set()


def test_words_stand_in_order_and_once():
    terms = [term.lower() for term, _ in entries()]
    assert terms == sorted(set(terms))


def test_explanations_are_short():
    assert [term for term, text in entries() if len(text.split()) > 60] == []


VAGUE = re.compile(r"\b(nobody|anybody|everybody|whoever)\b", re.IGNORECASE)


def test_pages_name_who_is_meant():
    """A process, a client, a user: a reader of plain technical English looks for the noun."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/*/README.md")]
    found = {
        str(page.relative_to(ROOT)): VAGUE.findall(
            written_by_hand(page.read_text(encoding="utf-8"))
        )
        for page in pages
    }
    assert {page: words for page, words in found.items() if words} == {}


def written_by_hand(text: str) -> str:
    """The part before the comment that marks the rest as generated."""
    return re.split(r"<!-- .*generated", text, maxsplit=1, flags=re.IGNORECASE)[0]
