"""The parity zoo: every causal type of transformers, tiny, served, and compared with `generate`."""
