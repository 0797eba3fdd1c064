"""Adapters (LoRA) of engines that run: loaded, removed, and brought to engines that come later."""
