"""Step inputs in pinned memory. Worker process."""
