"""Every command of the README, the tutorials and the guides runs, and the reference pages agree with the code.

The commands of the pages for authors of plugins are in `test_docs_for_authors`, so that two testers share them.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from page_reader import ALL_PAGES, AT_NIGHT, DEV_RUN, DOCS, PAGES, ROOT, follow, in_tiers

from tenonry.cli import make_parser
from tenonry_commands.plugins import points


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", in_tiers(PAGES), ids=[page.stem for page in PAGES])
def test_every_documented_command_runs(page, tmp_path):
    assert follow(page, tmp_path) > 0


FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_no_command_is_shown_that_is_not_run():
    hidden = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in [ROOT / "README.md", *DOCS]
        for language, text in FENCED.findall(page.read_text())
        for line in text.splitlines()
        if re.match(r"(env .*)?(python3? |tenonry [a-z]+ |curl )", line)
        and (language != "sh" or page not in ALL_PAGES)
    ]
    assert hidden == []


def test_commands_on_the_pages_of_distributions_are_understood():
    """Verbs and flags exist; their behaviour is tested in their own distributions."""
    count = 0
    for page in [*ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]:
        for _, text in FENCED.findall(page.read_text()):
            for line in text.replace("\\\n", " ").splitlines():
                if line.startswith("tenonry "):
                    arguments = shlex.split(line.split("  #")[0])
                    make_parser(arguments[1])[0].parse_args(arguments[2:])
                    count += 1
    assert count > 20


@pytest.mark.parametrize("page", sorted(AT_NIGHT))
def test_commands_of_pages_that_run_at_night_are_understood(page: str):
    (file,) = (each for each in ALL_PAGES if each.stem == page)
    text = file.read_text()
    if "pip install ./" in text:
        pytest.skip("the page brings plugins, which may bring flags")
    lines = "".join(block for language, block in FENCED.findall(text) if language == "sh")
    for line in lines.replace("\\\n", " ").splitlines():
        _, found, command = line.split("  #")[0].partition(f"{DEV_RUN} ")
        if found:
            verb, *arguments = shlex.split(command)
            make_parser(verb)[0].parse_args(arguments)


def test_reference_pages_are_up_to_date(monkeypatch):
    folder = ROOT / "docs" / "reference"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("reference", folder / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.outdated() == [], "run: python docs/reference/generate.py"


def test_every_interface_is_on_a_reference_page():
    """An author needs no source: the members of each interface are on the page of interfaces or of records."""
    pages = "".join(
        (ROOT / "docs" / "reference" / name).read_text("utf-8")
        for name in ("interfaces.md", "records.md")
    )
    bases = [point.load_base() for point in points() if point.group.startswith("tenonry.")]
    names = {f"`{base.__module__}.{base.__qualname__}`" for base in bases if isinstance(base, type)}
    assert len(names) > 20
    assert [name for name in sorted(names) if f"\n{name}" not in pages] == []


def anchors(page: Path) -> set[str]:
    """The anchors that links may use after the `#`: headings as GitHub converts them."""
    headings = (
        re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE) if page.suffix == ".md" else []
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}#{anchor}"
        for page in pages
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text())
        for found in [(page.parent / target) if target else page]
        if not found.exists() or (anchor and anchor not in anchors(found))
    ]
    assert broken == []


@pytest.mark.parametrize("index", [ROOT / "docs" / "README.md", ROOT / "docs/adr/README.md"])
def test_index_lists_every_page_once(index: Path):
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", index.read_text(), re.MULTILINE)
    pages = {
        str(page.relative_to(index.parent)) for page in DOCS if page.is_relative_to(index.parent)
    }
    assert sorted(listed) == sorted(page for page in pages - {index.name} if page[:4] != "adr/")
