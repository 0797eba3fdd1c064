"""Plugins: hooks, kinds, discovery, and the resolver from names to classes."""

from __future__ import annotations

from tenonry.point import Point

__all__ = ["Point"]
