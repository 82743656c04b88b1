"""Brings every node to one form, so that what comes after sees one version of each operator."""
