"""The command `bench` and the worker `null`, which computes nothing; runs in a process of its own."""

from __future__ import annotations
