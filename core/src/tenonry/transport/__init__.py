"""Communication between processes: typed messages as frames, sockets, keys and the run directory."""
