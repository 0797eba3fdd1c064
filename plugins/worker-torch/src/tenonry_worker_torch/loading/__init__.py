"""From a folder to a model that is known to run: files, refusals, weights, probe run and self check. Worker process."""
