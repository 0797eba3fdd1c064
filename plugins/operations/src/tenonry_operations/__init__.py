"""The call sets `operations` and `adapters`: sleep, weights, profiles, saving and LoRA adapters of running engines."""

from __future__ import annotations
