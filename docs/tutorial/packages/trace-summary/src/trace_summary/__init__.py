"""A tenonry command that summarises a file of the stat logger jsonl."""
