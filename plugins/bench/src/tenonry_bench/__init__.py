"""The command `bench` and the worker `null`, which computes nothing; runs in a separate process."""

from __future__ import annotations
