"""Models that are broken, absurd or made to do harm, each with the class of error it must end in.

A case is a model, what to feed it, and the outcome: the name of an exception, or None where the model must run. Cases
are kept in families; ``worker`` runs a family in child processes that are measured.
"""
