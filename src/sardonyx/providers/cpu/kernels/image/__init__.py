"""Pooling, resizing, sampling and regions of images."""
