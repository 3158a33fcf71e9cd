"""Estimators: where along a ray samples are worth having."""
