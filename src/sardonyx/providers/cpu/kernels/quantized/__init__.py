"""Products and convolutions of 8-bit integers."""
