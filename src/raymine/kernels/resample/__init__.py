"""Resampling of batched rays by a CDF: `op` has the checks and the dispatch, `reference` the definition."""
