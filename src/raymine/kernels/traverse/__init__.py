"""Walking rays from cell to cell through occupancy grids in any boxes."""
