"""Decision records: what a scheduler decided in each step, and why a request waited. Engine process, and commands."""
