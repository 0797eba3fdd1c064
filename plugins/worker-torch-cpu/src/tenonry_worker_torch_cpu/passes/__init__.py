"""Model passes for the CPU, joined through `tenonry.model_passes`. Worker process."""
