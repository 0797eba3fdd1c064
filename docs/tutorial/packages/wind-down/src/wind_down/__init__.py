"""A logits processor for tenonry that ends long answers softly."""
