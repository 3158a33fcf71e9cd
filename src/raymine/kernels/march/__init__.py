"""Marching rays through a multi-level occupancy grid."""
