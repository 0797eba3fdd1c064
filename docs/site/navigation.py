"""Navigation of the site and `llms.txt`, both from the index of the documentation, docs/README.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outside import ROOT, outside_pages, rewrite, site_path, source_of

INDEX = "docs/README.md"
ADRS = "docs/adr/README.md"
SECTION = re.compile(r"^## (?P<section>.+)$|^(?P<group>[A-Z][^:\n]*):$", re.MULTILINE)
ENTRY = re.compile(r"^- \[(?P<title>[^]]+)\]\((?P<path>[^)]+)\)(?:: (?P<text>.+))?", re.MULTILINE)
LINE = re.compile(f"{SECTION.pattern}|{ENTRY.pattern}", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """One page of the index: where it stands, its title, and its path below docs/."""

    section: str
    group: str
    title: str
    path: str
    text: str = ""


def entries(index: str) -> Iterator[Entry]:
    """Yield the pages that an index lists, in its order."""
    section = group = ""
    for line in LINE.finditer(index):
        if line["section"]:
            section, group = line["section"], ""
        elif line["group"]:
            group = line["group"]
        else:
            yield Entry(section, group, line["title"], line["path"], line["text"] or "")


def all_entries() -> list[Entry]:
    """Return all pages of the site: the index, decisions, the packages and the files at the root."""
    read = {name: (ROOT / name).read_text(encoding="utf-8") for name in (INDEX, ADRS)}
    found = list(entries(read[INDEX]))
    found += [
        Entry("Decisions", "", each.title, f"adr/{each.path}", each.text)
        for each in entries(read[ADRS])
    ]
    for source, path in outside_pages().items():
        if path != "README.md":
            section, _, name = path.partition("/")
            title = name.removesuffix(".md") if section == "packages" else Path(source).stem.title()
            found.append(Entry(section.title(), "", title.replace("_", " "), path))
    return found


def nav(pages: list[Entry]) -> list[Any]:
    """Return the navigation that mkdocs takes: sections, their groups, and pages with titles."""
    sections: dict[str, list[Any]] = {}
    groups: dict[tuple[str, str], list[Any]] = {}
    for page in pages:
        section = sections.setdefault(page.section, [])
        if page.group and (page.section, page.group) not in groups:
            groups[page.section, page.group] = []
            section.append({page.group: groups[page.section, page.group]})
        groups.get((page.section, page.group), section).append({page.title: page.path})
    sections.setdefault("Decisions", []).insert(0, site_path(ADRS))
    return [{"Start": site_path(INDEX)}, *({name: each} for name, each in sections.items())]


def llms_txt(name: str, description: str, pages: list[Entry]) -> str:
    """Return the index for language models: https://llmstxt.org, with links to Markdown."""
    lines = [f"# {name}", "", f"> {description}"]
    section = ""
    for page in pages:
        if page.section != section:
            section = page.section
            lines += ["", f"## {section}", ""]
        lines.append(f"- [{page.title}]({page.path})" + f": {page.text}" * bool(page.text))
    return "\n".join(lines) + "\n"


def on_config(config: Any) -> Any:
    """Set the navigation."""
    config.nav = nav(all_entries())
    return config


def on_post_build(config: Any) -> None:
    """Write `llms.txt`, and the source of each page beside it."""
    out = Path(config.site_dir)
    pages = all_entries()
    text = llms_txt(config.site_name, config.site_description, pages)
    (out / "llms.txt").write_text(text, encoding="utf-8")
    for page in pages:
        source = source_of(page.path)
        markdown = (ROOT / source).read_text(encoding="utf-8")
        target = out / page.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewrite(markdown, source, config.repo_url or ""), encoding="utf-8")
