"""Elementary functions, integer arithmetic, reductions and transposes on vectors, and scalar programs made of them."""
