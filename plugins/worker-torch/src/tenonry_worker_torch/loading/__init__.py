"""Loading of a verified model from a folder: files, rejections, weights, probe run and self check. Worker process."""
