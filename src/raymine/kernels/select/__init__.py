"""Compaction of packed samples."""
