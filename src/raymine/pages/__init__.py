"""Self-contained HTML pages: the frame of a page, its parts, and figures as inline SVG."""
