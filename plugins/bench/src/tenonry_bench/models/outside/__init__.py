"""Modules for interpreters of other environments: this folder is on their path, without the rest of tenonry."""
