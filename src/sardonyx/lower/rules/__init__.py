"""The lowering rules, one file per family of operators; ``lower/families.py`` lists the operators of each."""
