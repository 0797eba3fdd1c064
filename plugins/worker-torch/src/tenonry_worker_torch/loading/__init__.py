"""From a folder to a verified model: files, rejections, weights, probe run and self check. Worker process."""
