"""Running sums and products along packed rays."""
