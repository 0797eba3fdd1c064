"""The scheduler `batching` and its policies `fcfs` and `priority`; runs in the engine process."""

from __future__ import annotations
