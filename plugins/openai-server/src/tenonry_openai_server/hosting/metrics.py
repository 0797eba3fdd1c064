"""Joins the Prometheus expositions of several models into one: each metric once, with the series of all. Front end."""

from __future__ import annotations

from collections.abc import Iterable

COMMENT = "# "


def joined(pages: Iterable[bytes]) -> bytes:
    """Merge pages. Of series with equal name and labels, such as those of this process, the first counts."""
    heads: dict[str, list[str]] = {}
    series: dict[str, dict[str, str]] = {}
    for page in pages:
        family = ""
        is_new = False
        for line in page.decode().splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                is_new = family not in heads
                heads.setdefault(family, [])
                series.setdefault(family, {})
            if line.startswith(COMMENT):
                if is_new:
                    heads[family].append(line)
            elif line:
                series[family].setdefault(line.rpartition(" ")[0], line)
    lines = [line for family, head in heads.items() for line in (*head, *series[family].values())]
    return "".join(f"{line}\n" for line in lines).encode()
