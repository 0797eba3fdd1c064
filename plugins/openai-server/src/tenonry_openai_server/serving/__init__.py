"""The server as a process: sockets, start, signals, drain, and the supervisor of several API servers."""
