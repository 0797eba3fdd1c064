"""Between processes: typed messages as frames, sockets, keys and the private folder of a run."""
