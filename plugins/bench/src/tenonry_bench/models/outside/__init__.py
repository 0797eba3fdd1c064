"""What interpreters of other environments import: this folder is on their path, and nothing else of tenonry is."""
