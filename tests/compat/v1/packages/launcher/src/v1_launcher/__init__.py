"""A launcher for tenonry that records which engines it started."""
