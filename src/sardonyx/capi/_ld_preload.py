"""Libraries that must be loaded first: none."""
