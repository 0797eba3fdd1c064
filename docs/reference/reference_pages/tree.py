"""The page of the tree: layers of the kernel, and distributions."""

from __future__ import annotations

import re
from pathlib import Path

from reference_pages.text import NOTICE, ROOT, first_sentence, read_toml


def tree_page() -> str:
    """The kernel's layers, as the import linter holds them, and every distribution."""
    layers = read_toml(ROOT)["tool"]["importlinter"]["contracts"][0]["layers"]
    parts = ["# The tree\n", NOTICE, "## The kernel\n"]
    parts += [
        "`core/src/tenonry/`, from the top down: a module imports from its own line and from those below it.\n"
    ]
    parts += ["```", *_drawing([layer.split(" : ") for layer in layers]), "```\n"]
    parts += [
        "A plugin imports the kernel, and of its siblings only libraries; an import linter holds all of this.\n",
        "## Distributions\n",
    ]
    parts += [
        "Each needs the kernel, `tenonry`; *needs* names the siblings that it needs besides.\n"
    ]
    for folder in ("executors", "schedulers", "stat_loggers", "plugins", "tests"):
        parts += [
            f"### `{folder}/`\n",
            "| folder | what it is | offers | needs |",
            "|---|---|---|---|",
        ]
        files = sorted((ROOT / folder).glob("*/pyproject.toml"))
        parts += [_distribution_row(file.parent) for file in files]
        parts += [""]
    return "\n".join(parts)


def _drawing(layers: list[list[str]]) -> list[str]:
    """One line per room, and one for the modules without one: its name, and the first sentence of its docstring."""
    kernel = ROOT / "core" / "src" / "tenonry"
    lines = []
    for layer in layers:
        rooms = [name for name in layer if (kernel / name).is_dir()]
        values = [name for name in layer if name not in rooms]
        lines += [
            f"{name + '/':14}{first_sentence(kernel / name / '__init__.py')}" for name in rooms
        ]
        if len(values) > 1:
            lines += [f"{'values':14}{', '.join(sorted(values))}"]
        elif values:
            lines += [f"{values[0]:14}{first_sentence(kernel / f'{values[0]}.py')}"]
    arrows = [f"{'':4}↓" for _ in lines]
    return [line for pair in zip(lines, arrows, strict=True) for line in pair][:-1]


def _distribution_row(folder: Path) -> str:
    project = read_toml(folder)["project"]
    offers = [
        f"{group.removeprefix('tenonry.')} {', '.join(f'`{name}`' for name in sorted(names))}"
        for group, names in sorted(project.get("entry-points", {}).items())
    ]
    needs = [re.split(r"[^\w-]", one)[0] for one in project["dependencies"]]
    siblings = [
        f"`{name.removeprefix('tenonry-')}`" for name in needs if name.startswith("tenonry-")
    ]
    cells = (
        f"`{folder.name}`",
        project["description"],
        "; ".join(offers),
        ", ".join(sorted(siblings)),
    )
    return f"| {' | '.join(cells)} |"
