"""Who runs what, and why."""
