"""KV connectors around a store: both halves, and the thread that copies blocks. Engine and worker processes."""
