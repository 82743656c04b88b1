"""Operators: numpy implementations, scalar programs, type and shape inference."""
