"""What a run keeps between two starts: the state of the loop, checkpoints, and what it takes from another run."""
