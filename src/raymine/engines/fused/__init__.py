"""The fast path on CUDA: training step and renderer of the hash-grid field as a few fused Triton kernels."""
