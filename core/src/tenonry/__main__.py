"""`python -m tenonry`: the command line without its script on PATH."""

from __future__ import annotations

import sys

from tenonry.cli import main

sys.exit(main())
