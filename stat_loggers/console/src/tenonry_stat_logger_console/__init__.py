"""The stat logger `console`: a readable line every few seconds; runs on the observer thread."""

from __future__ import annotations
