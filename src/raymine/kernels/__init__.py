"""Numerical ops. Each has a plain-torch reference that defines it and faster backends that obey it.

`kernels/<op>/op.py` is the only file of an op that others import: it checks its inputs, picks a backend and carries the
gradients. Ops take and return plain tensors; they know nothing of scenes, fields or training.
"""
