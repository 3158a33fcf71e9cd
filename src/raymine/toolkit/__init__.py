"""Samplers, scans and volume rendering as plain functions and small classes, for fields and loops of any kind.

Each module is a family: `pack` (which samples belong to which ray), `scan`, `volume`, `importance`, `boxes`, `lenses`,
`occupancy`, `proposal`, `contraction` and `losses`. Everything runs on CPU and CUDA, and what can be differentiated is.
"""
