"""How results of the mining benchmark are shown: a table in the terminal, and one page with figures."""
