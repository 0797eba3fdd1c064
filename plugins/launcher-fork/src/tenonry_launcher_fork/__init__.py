"""Engine processes as forks of one process that has done the imports."""
