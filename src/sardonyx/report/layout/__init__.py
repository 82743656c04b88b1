"""Layered layout of directed graphs: layers, order within layers, coordinates. It knows nothing of models."""
