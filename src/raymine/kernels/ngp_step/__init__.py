"""Stages of a training step fused for the hash-grid field."""
