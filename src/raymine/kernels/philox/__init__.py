"""Counter-based random numbers: each number is a function of (seed, step, stream, index)."""
