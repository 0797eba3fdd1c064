"""Version of the kernel and of every distribution released with it."""

from __future__ import annotations

__version__ = "0.1.0"
