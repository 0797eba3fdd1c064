"""Modules for interpreters of other environments: this folder is on their path, and nothing else of tenonry is."""
