#!/usr/bin/env python3
"""Set up this repository and work with it. Needs Python 3.11 to 3.14 and nothing else.

    python3 dev.py run [WORDS]                 tenonry WORDS; without words: serve smollm2, or else the demo model
    python3 dev.py test [PYTEST ARGUMENTS]     tests of every change, some at a time, or those that the arguments choose
    python3 dev.py test --unit [ARGUMENTS]     the quick ones, which start no process: 2 to 3 minutes
    python3 dev.py test --changed [BASE]       those that the change since BASE, or since this branch left main, touches
    python3 dev.py test --changed --nightly    of those marked nightly, the ones that import what has changed
    python3 dev.py test --all                  and those marked nightly, which take minutes each
    python3 dev.py test --isolated [DIST ...]  a distribution's tests with only what it declares installed
    python3 dev.py check [--fix] [NAME ...]    ruff, format, mypy, layers, declared: all of them, or by name
    python3 dev.py bench [WORDS]               tenonry bench WORDS; without words: the standard set
    python3 dev.py bench parity [WORDS]        every causal type of transformers served tiny, compared with generate
    python3 dev.py docs [WORDS]                mkdocs WORDS; without words: the site of docs/, built strictly into site/
    python3 dev.py strength [--help]           the suites: broken plugins caught, correct ones accepted, mutants killed
    python3 dev.py release [--out FOLDER]      wheels, sdists, checksums and bill of materials of the last commit
    python3 dev.py release --check FOLDER      whether such a folder is complete and unchanged
    python3 dev.py matrix --wheels FOLDER      install and try each combination of versions; docs/reference/matrix.md
    python3 dev.py first-use [--wheels FOLDER] the README's commands in a new clone with an empty home, and their times

Everything lives in .venv, made on first use and brought up to date when requirements.txt, constraints.txt,
a pyproject.toml or a source to be compiled changed; pip's output goes to .venv/pip.log. DIST is a folder
(schedulers/static) or a name; without any, all distributions are tested, two at a time.
"""

from __future__ import annotations

import sys

from dev import verbs

if __name__ == "__main__":
    verbs.need_python()
    sys.exit(verbs.main(sys.argv[1:], __doc__))
