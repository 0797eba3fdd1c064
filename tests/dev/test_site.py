"""The site of docs/: its navigation, links that leave docs/, and a strict build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from house import ROOT

from dev import paths, programs, site

sys.path.append(str(ROOT / "docs" / "site"))
import navigation
import outside

INDEX = """# Documentation

## Tutorials

- [Serve](tutorial/serve.md): from nothing
- [Look](tutorial/look.md)

## How-to guides

Run it:

- [Configure](how-to/configure.md)

Deploy it:

- [Deploy](how-to/deploy.md): a container
"""


def test_navigation_is_that_of_the_index():
    pages = list(navigation.entries(INDEX))
    assert navigation.nav(pages) == [
        {"Start": "README.md"},
        {"Tutorials": [{"Serve": "tutorial/serve.md"}, {"Look": "tutorial/look.md"}]},
        {
            "How-to guides": [
                {"Run it": [{"Configure": "how-to/configure.md"}]},
                {"Deploy it": [{"Deploy": "how-to/deploy.md"}]},
            ]
        },
        {"Decisions": ["adr/README.md"]},
    ]
    assert navigation.llms_txt("tenonry", "An engine", pages).splitlines()[:6] == [
        "# tenonry", "", "> An engine", "", "## Tutorials", "",
    ]  # fmt: skip
    assert "- [Deploy](how-to/deploy.md): a container" in navigation.llms_txt("t", "d", pages)


@pytest.mark.parametrize(
    ("link", "source", "rewritten"),
    [
        ("[a](../../plugins/bench/README.md#b)", "docs/how-to/x.md", "[a](../packages/bench.md#b)"),
        ("[a](../../docs/README.md)", "plugins/bench/README.md", "[a](../README.md)"),
        ("[a](../CONTRIBUTING.md)", "docs/README.md", "[a](project/contributing.md)"),
        ("[a](how-to/deploy.md#b)", "docs/README.md", "[a](how-to/deploy.md#b)"),
        ("[`a`](../../dev.py)", "docs/how-to/x.md", "[`a`](https://host/us/blob/main/dev.py)"),
        ("[a](b/README.md)", "docs/tutorial/b.md", "[a](b/README.md)"),
        (
            "[a](packages/short-prompts/README.md)",
            "docs/tutorial/x.md",
            "[a](https://host/us/blob/main/docs/tutorial/packages/short-prompts/README.md)",
        ),
        ("[a](nowhere.md)", "docs/how-to/x.md", "[a](nowhere.md)"),
        ("[a](https://b.test/c)", "docs/how-to/x.md", "[a](https://b.test/c)"),
        ("```\n[a](../dev.py)\n```", "docs/x.md", "```\n[a](../dev.py)\n```"),
    ],
)
def test_links_are_rewritten(link: str, source: str, rewritten: str):
    assert outside.rewrite(link, source, "https://host/us/") == rewritten


def test_link_to_a_file_without_a_repository_is_its_text():
    assert outside.rewrite("see [`dev.py`](../dev.py)", "docs/x.md", "") == "see `dev.py`"


def test_mkdocs_is_installed_when_its_requirements_changed(
    pips: list[tuple[str, ...]], copy: Path, monkeypatch: pytest.MonkeyPatch
):
    requirements = copy / site.REQUIREMENTS
    requirements.parent.mkdir()
    requirements.write_text("mkdocs==1\n")
    ran: list[list[str]] = []

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        ran.append(command[2:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert site.docs([]) == site.docs(["serve"]) == 0
    assert ran == [["mkdocs", "build", "--strict"], ["mkdocs", "serve"]]
    assert pips == [("-r", site.REQUIREMENTS)]
    requirements.write_text("mkdocs==2\n")
    site.docs([])
    assert len(pips) == 2


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    python = paths.VENV / "docs" / "bin" / "python"
    if not python.exists():
        pytest.skip("mkdocs is not installed: python3 dev.py docs")
    folder = tmp_path_factory.mktemp("site")
    command = [str(python), "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = programs.test_env() | {"NO_MKDOCS_2_WARNING": "1", "REPOSITORY_URL": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def targets(page: Path) -> list[tuple[str, str]]:
    """Attribute and value of what a page links to and loads."""
    return re.findall(r'\b(href|src)="([^"]*)"', page.read_text(encoding="utf-8"))


@pytest.mark.integration
def test_links_of_the_site_lead_somewhere(built: Path):
    broken = []
    for page in built.rglob("index.html"):
        for _, target in targets(page):
            address = urllib.parse.urlsplit(target.replace("&amp;", "&"))
            if address.scheme or address.netloc:
                continue
            found = Path(os.path.normpath(page.parent / urllib.parse.unquote(address.path)))
            found = found / "index.html" if found.is_dir() else found
            anchor = urllib.parse.unquote(address.fragment)
            if not found.is_file() or (
                anchor
                and found.suffix == ".html"
                and f'id="{anchor}"' not in found.read_text(encoding="utf-8")
            ):
                broken.append(f"{page.relative_to(built)}: {target}")
    assert broken == []


@pytest.mark.integration
def test_pages_load_nothing_from_elsewhere(built: Path):
    for page in built.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r"<(?:script|link|img)\b[^>]*?(?:src|href)=\"(?:https?:)?//[^>]*>", text
        )
        assert loaded == [], page


@pytest.mark.integration
def test_llms_txt_lists_pages_that_exist_as_markdown(built: Path):
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", (built / "llms.txt").read_text(), re.MULTILINE)
    assert len(listed) > 100
    assert [path for path in listed if not (built / path).is_file()] == []
