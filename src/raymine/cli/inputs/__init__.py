"""Commands for scenes, images and recipes, before training."""
