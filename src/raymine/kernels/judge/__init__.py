"""From pre-activations to the loss of each ray and the gradient of every sample."""
