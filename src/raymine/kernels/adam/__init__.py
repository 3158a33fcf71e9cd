"""The Adam update, with entries that received no gradient left alone."""
