"""Engines and ranks on the nodes of a Ray cluster: the launcher `ray` and the executor `ray`. Ray is loaded later."""

from __future__ import annotations
