"""Start of engines: the launcher for processes of this node, the handshake, and the entry of child processes."""
