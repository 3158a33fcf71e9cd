"""Counter-based random numbers: a draw is a function of (seed, step, stream, index)."""
