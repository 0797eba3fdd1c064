"""The executor `mp`: one worker process per rank of an engine, all on one node."""

from __future__ import annotations
