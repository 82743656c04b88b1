"""Fuzzers for everything that a model, a feed or a binding can say to compiled code; see README.md here."""
