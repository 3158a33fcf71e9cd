"""Sampling rays in the occupied cells of occupancy grids, whose boxes may lie anywhere."""
