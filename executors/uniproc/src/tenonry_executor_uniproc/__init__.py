"""The executor `uni`: one worker, built and called in the engine's own process."""

from __future__ import annotations
