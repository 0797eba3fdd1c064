"""Hooks for tenonry that choose a scheduler by the number of requests."""
