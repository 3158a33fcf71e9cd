"""What is done with a trained run: open it, score it, verify it, reproduce it."""
