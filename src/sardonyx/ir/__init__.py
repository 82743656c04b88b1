"""The graph that every stage reads and rewrites."""
