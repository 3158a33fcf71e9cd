"""Numerical ops. A plain-torch reference defines each op; faster backends must agree with it.

Other packages import only `kernels/<op>/op.py` of an op. That file checks the inputs, picks a backend and implements
the gradients. Ops take and return plain tensors. They do not depend on scenes, fields or training.
"""
