"""Named graph rewrites, in levels."""
