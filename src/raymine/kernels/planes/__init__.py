"""Features of factorised fields: products of planes, or of planes and lines."""
