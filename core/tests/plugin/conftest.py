"""A distribution of a third party, for the tests of the resolver."""

from __future__ import annotations

import pytest

from tenonry.plugin.kinds import KINDS
from tenonry_testkit.kernel.plugins import STAT_LOGGER
from tenonry_testkit.kernel.site import Site

LOGGERS = KINDS["stat_logger"].group


@pytest.fixture
def acme(site: Site) -> Site:
    """A distribution with a stat logger, as a third party would publish it."""
    site.install(
        "acme",
        version="2.5",
        requires=["tenonry>=0.1,<0.2"],
        entry_points={
            LOGGERS: {
                "good": "acme:Mine", "missing": "acme:Missing", "future": "acme:Future", "stranger": "acme:Stranger",
                "function": "acme:function", "gone": "acme:Gone", "nowhere": "acme_nowhere:Mine",
            }
        },
        modules={"acme.py": STAT_LOGGER},
    )  # fmt: skip
    return site
