"""Step kernels for tenonry in torch: the norm and the gated delta rule."""
