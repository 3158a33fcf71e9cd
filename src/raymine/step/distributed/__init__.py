"""Steps that several processes take together."""
