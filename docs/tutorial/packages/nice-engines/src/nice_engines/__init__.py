"""A launcher for tenonry that starts engines with a lower priority."""
