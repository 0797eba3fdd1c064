"""Failpoints: faults at named borders, for tests; off unless `TENONRY_FAILPOINTS` is set."""

from __future__ import annotations

VARIABLE = "TENONRY_FAILPOINTS"
