"""Pages of the repository outside docs/ as pages of the site, and links between the two."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
AT_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md", "RELEASING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
LIST = re.compile(r"^(?![\s|#-])(.+)\n(?=- )", re.MULTILINE)  # begins without an empty line
SHOWN = re.compile(
    r"docs/(?!tutorial/.*/).*(?<!\.py)"
)  # the opposite of exclude_docs in mkdocs.yml
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


@cache
def outside_pages() -> dict[str, str]:
    """Return the path in the site of each page outside docs/, by its path in the repository."""
    pages = {"README.md": "README.md"}
    readmes = [ROOT / "core" / "README.md", *sorted(ROOT.glob("[!.]*/*/README.md"))]
    for file in readmes:
        if (file.parent / "pyproject.toml").exists():
            pages[file.relative_to(ROOT).as_posix()] = f"packages/{file.parent.name}.md"
    pages |= {name: f"project/{name.lower()}" for name in AT_ROOT}
    results = (ROOT / "bench" / "results").glob("*.md")
    return pages | {
        f"bench/results/{file.name}": f"results/{file.name}" for file in sorted(results)
    }


def site_path(source: str) -> str:
    """Return the path in the site of a file of the repository; files of docs/ keep theirs."""
    return outside_pages().get(source) or source.removeprefix("docs/")


def rewrite(markdown: str, source: str, repository: str) -> str:
    """Turn links of the page `source` into links of the site.

    A file that is no page becomes a link to `repository`; without one, the text of the link stays.
    """
    here = posixpath.dirname(source)
    folder = posixpath.dirname(site_path(source)) or "."

    def link(found: re.Match[str]) -> str:
        image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(here, target))
        if ":" in target or target.startswith("/") or not (ROOT / path).exists():
            return found[0]  # mkdocs reports what leads nowhere
        if path in outside_pages() or SHOWN.fullmatch(path):
            return f"{image}[{text}]({posixpath.relpath(site_path(path), folder)}{anchor})"
        if repository:
            return f"{image}[{text}]({repository.rstrip('/')}/blob/main/{path}{anchor})"
        return text

    return outside_code(markdown, lambda text: LINK.sub(link, text))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Change the text between fenced blocks of code."""
    parts = FENCE.split(markdown)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/."""
    from mkdocs.structure.files import File

    for source, path in outside_pages().items():
        if path != "README.md":
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, path, content=text))
    return files


def source_of(path: str) -> str:
    """Return the path in the repository of a page of the site."""
    found = (source for source, site in outside_pages().items() if site == path != "README.md")
    return next(found, f"docs/{path}")


def on_page_markdown(markdown: str, page: Any, config: Any, **_others: Any) -> str:
    """Rewrite the links of a page, and let lists begin where GitHub lets them."""
    text = rewrite(markdown, source_of(page.file.src_uri), config.repo_url or "")
    return outside_code(text, lambda part: LIST.sub(r"\1\n\n", part))
