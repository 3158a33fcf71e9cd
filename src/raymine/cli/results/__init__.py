"""Commands that use trained runs."""
