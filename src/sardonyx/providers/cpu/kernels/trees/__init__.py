"""Decision forests."""
