"""Plugins: the hooks, the kinds, what is installed, and the one resolver that turns names into classes."""

from __future__ import annotations

from tenonry.point import Point

__all__ = ["Point"]
