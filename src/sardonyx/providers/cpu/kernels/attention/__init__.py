"""Attention with an online softmax, on vectors and on tiles; linear attention."""
