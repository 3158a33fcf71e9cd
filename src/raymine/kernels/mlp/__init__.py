"""Small multi-layer perceptrons without biases."""
