"""Multi-resolution hash grid encoding."""
