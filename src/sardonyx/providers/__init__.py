"""Ways to run nodes."""
