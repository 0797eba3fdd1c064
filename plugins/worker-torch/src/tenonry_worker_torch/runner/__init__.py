"""Steps of the worker: the runner, its features, and drivers around its passes. Worker process."""
