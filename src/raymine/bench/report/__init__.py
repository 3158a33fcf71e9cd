"""Presentation of the mining benchmark: a table in the terminal, and an HTML page with figures."""
