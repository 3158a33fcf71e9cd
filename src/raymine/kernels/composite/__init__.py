"""Volume rendering of packed samples."""
