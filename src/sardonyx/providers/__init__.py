"""Providers: backends that run nodes."""
