"""The Adam update. It can skip elements whose gradient is 0."""
