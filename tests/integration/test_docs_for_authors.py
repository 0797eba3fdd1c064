"""Every command of the pages for authors of plugins runs; those of the other pages are in `test_docs`."""

from __future__ import annotations

import pytest
from page_reader import PAGES_FOR_AUTHORS, follow, in_tiers


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page", in_tiers(PAGES_FOR_AUTHORS), ids=[page.stem for page in PAGES_FOR_AUTHORS]
)
def test_every_documented_command_runs(page, tmp_path):
    assert follow(page, tmp_path) > 0
