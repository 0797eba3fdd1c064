"""Tests that the change against a base touches: by the import graph, and for pages the tests that read them."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from dev import paths
from dev.console import stop
from dev.imports import ImportGraph, is_test, is_test_code
from dev.tree import distributions

# A change of one of these may change any test.
EVERYWHERE = {"conftest.py", "pyproject.toml", "constraints.txt", "requirements.txt", paths.NO_DEPS}
# What holds of the whole tree, and of it what reads docstrings, comments and pages.
TREE = "tests/architecture"
WORDS = tuple(
    f"{TREE}/test_{name}.py"
    for name in ("behaviour", "english", "glossary", "reported_faults", "size")
)
PAGES = tuple(
    f"tests/integration/test_{name}.py"
    for name in (
        "docs",
        "docs_for_authors",
        "page_names",
        "parser_page",
        "step_table",
        "troubleshooting",
    )
)
# The test of the packages of all tutorials, and the folders of pages that make them.
TUTORIALS = "tests/integration/test_tutorial_packages.py"
TUTORIAL_FOLDERS = {Path("docs/tutorial"), Path("docs/how-to")}
# The test that runs the commands of a page, with the page's name in brackets, and the pages of the second file.
COMMANDS = "test_every_documented_command_runs"
FOR_AUTHORS = re.compile("write-|package-|test-a-|open-|your-")
IMPORTED = re.compile(r"^\s*(?:from|import) (tenonry[\w.]*)", re.MULTILINE)


def base(words: list[str]) -> str:
    """Return the commit to compare with: the first of `words`, else where this branch left `main`, else the parent."""
    for candidate in words[:1] or ["origin/main", "main", "HEAD^1"]:
        commit = _git("merge-base", "HEAD", candidate)
        if commit and (words or commit != _git("rev-parse", "HEAD")):
            return commit
    return stop(f"no commit {words[0]!r} to compare with" if words else "no commit before this one")


def changed_files(commit: str) -> list[Path]:
    """Return the files that differ from `commit`, those that are not committed and those that are gone included."""
    names = _git("diff", "--name-only", commit, "--").splitlines()
    names += _git("ls-files", "--others", "--exclude-standard").splitlines()
    return sorted({paths.ROOT / name for name in names})


def touched(commit: str, *, is_direct: bool = False) -> list[str]:
    """Return the tests that the change since `commit` touches, as arguments of pytest; `is_direct`: the nearest ones.

    A source whose code is the same but for docstrings and comments touches only what reads those.
    """
    files = changed_files(commit)
    if not is_direct and any(
        file.parent == paths.ROOT and file.name in EVERYWHERE for file in files
    ):
        return ["."]
    code = {file for file in files if file.suffix == ".py" and is_other_code(file, commit)}
    graph = ImportGraph()
    tests = {file for file in graph.importers(code, is_direct=is_direct) if is_test(file)}
    for file in files:
        if file.suffix not in {".py", ".md"}:
            tests |= tests_beside(file)
    chosen = [str(file.relative_to(paths.ROOT)) for file in sorted(tests) if file.exists()]
    words = [file for file in files if file.suffix in {".py", ".md"}]
    pages = touched_pages(files, {graph.module_of(file) for file in code})
    if is_direct:
        return chosen + [
            f"{PAGES[bool(FOR_AUTHORS.match(page))]}::{COMMANDS}[{page}]" for page in pages
        ]
    if not files:
        return chosen
    folders = {folder for file in files for folder in file.relative_to(paths.ROOT).parents}
    if folders.intersection(TUTORIAL_FOLDERS):
        chosen.append(TUTORIALS)
    chosen += [TREE] if code or len(words) < len(files) else WORDS
    if words:
        chosen += [*PAGES, "-k", " or ".join([f"not {COMMANDS}", *pages])]
    return list(dict.fromkeys(chosen))


def touched_pages(files: list[Path], modules: set[str]) -> list[str]:
    """Return the names of the pages with commands that are among `files`, or whose programs import one of `modules`."""
    known = [paths.ROOT / "README.md", *sorted(paths.ROOT.glob("docs/[th]*/*.md"))]
    texts = {page: page.read_text(encoding="utf-8") for page in known if page.exists()}
    return [
        page.stem
        for page, text in texts.items()
        if page in files or modules.intersection(IMPORTED.findall(text))
    ]


def tests_beside(file: Path) -> set[Path]:
    """Return the tests of the distribution of `file`, or those below its folder of tests."""
    homes = [folder for folder in distributions().values() if folder in file.parents]
    folders = [folder / "tests" for folder in homes] or [file.parent] * is_test_code(file)
    return {test for folder in folders for test in folder.rglob("test_*.py")}


def is_other_code(file: Path, commit: str) -> bool:
    """Return True if `file` differs from that of `commit` in more than docstrings, comments and layout."""
    before = _git("show", f"{commit}:{file.relative_to(paths.ROOT)}")
    after = file.read_text(encoding="utf-8") if file.exists() else ""
    try:
        return code_of(before) != code_of(after)
    except SyntaxError:
        return True


def code_of(source: str) -> str:
    """Return the syntax tree of `source` without docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
    return ast.dump(tree)


def _git(*words: str) -> str:
    """Return what git prints, without the end of line; nothing if it fails."""
    done = subprocess.run(
        ["git", *words], cwd=paths.ROOT, capture_output=True, encoding="utf-8", check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
