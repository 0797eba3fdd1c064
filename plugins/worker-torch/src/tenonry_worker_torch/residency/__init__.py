"""Where the weights and the KV cache of a rank are: asleep and awake, and replaced while the engine runs."""
