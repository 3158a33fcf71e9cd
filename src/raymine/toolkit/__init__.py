"""Samplers, scans and volume rendering as plain functions and small classes, for any field and any training loop.

Modules: `pack` (which samples belong to which ray), `scan`, `volume`, `importance`, `boxes`, `lenses`, `occupancy`,
`proposal`, `contraction` and `losses`. Everything runs on CPU and CUDA. Docstrings say what is differentiable.
"""
