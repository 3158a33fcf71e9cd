"""Trilinear interpolation in a sparse grid of voxels."""
