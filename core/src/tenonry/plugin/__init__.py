"""Plugins: the hooks, the kinds, what is installed, and the one resolver that turns names into classes."""
