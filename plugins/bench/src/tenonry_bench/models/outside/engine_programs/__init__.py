"""One program per engine: it loads a model and answers runs of a workload, a line of JSON each. Child processes.

Standard library and the engine only: a program runs in the engine's own environment, where tenonry need not be. Engines
are imported by name, because none of them is a requirement of ours.
"""
