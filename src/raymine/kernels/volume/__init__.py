"""Rendered rays, and the weights, transmittances and opacities of their samples, in one op."""
