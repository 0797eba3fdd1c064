"""Location of a rank's weights and KV cache: asleep and awake, and replaced while the engine runs."""
