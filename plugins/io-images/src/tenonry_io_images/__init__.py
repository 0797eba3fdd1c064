"""The image processor `transformers`: image files to what a model's towers read, in a process that can be killed."""
