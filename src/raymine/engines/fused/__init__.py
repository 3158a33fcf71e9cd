"""The fast path on CUDA: the training step and the renderer of the hash-grid field as a few fused Triton kernels."""
