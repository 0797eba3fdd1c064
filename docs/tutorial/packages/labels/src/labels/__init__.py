"""A grammar backend for tenonry that enforces one of several labels."""
