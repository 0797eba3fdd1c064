"""Passes that make a loaded model fast, and their driver. Worker process."""
