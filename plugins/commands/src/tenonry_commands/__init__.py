"""The commands `generate`, `chat`, `ps`, `keys` and `completion`; each runs in the process of the command line."""

from __future__ import annotations
