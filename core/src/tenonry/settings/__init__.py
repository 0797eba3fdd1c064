"""Settings: where the values of a configuration come from, and in which order of precedence."""
