"""From nodes to groups of work that a provider can compile: shared by every compiling provider."""
