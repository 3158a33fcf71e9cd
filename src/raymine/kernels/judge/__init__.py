"""Loss of each ray, and its gradient with respect to the pre-activations of each sample."""
