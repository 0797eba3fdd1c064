"""Commands for authors of plugins, below `tenonry plugins`."""

from __future__ import annotations
