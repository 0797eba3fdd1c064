"""Step buffers for tenonry that overwrite the inputs of past steps, to find code that keeps them."""
