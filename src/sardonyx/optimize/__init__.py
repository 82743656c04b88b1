"""Named rewrites of the graph, in levels."""
