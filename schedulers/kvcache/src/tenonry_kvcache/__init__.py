"""Block pool, block hashes and prefix cache, as a library for schedulers; runs in the engine process."""

from __future__ import annotations
