"""Observers and companions of a run: what they record, show and warn about."""
