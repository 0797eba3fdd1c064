"""Starts engines: the launcher for processes of this node, the handshake, and what a child runs."""
