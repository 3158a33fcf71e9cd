"""Commands that train, and what they share."""
