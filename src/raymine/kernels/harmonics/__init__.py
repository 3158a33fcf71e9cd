"""Spherical harmonics of directions."""
