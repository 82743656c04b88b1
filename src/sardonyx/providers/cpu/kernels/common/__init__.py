"""What several families share: matrices and windows in memory, loop nests, epilogues, control steps."""
