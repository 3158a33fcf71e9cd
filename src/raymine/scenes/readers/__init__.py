"""Readers: one module for each scene format, and `detect`, which chooses the reader."""
