"""The results of a sweep: `results.json`, and a page about them."""
