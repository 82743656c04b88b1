"""Lowering: from graph nodes to groups of work that a provider can compile. Shared by every compiling provider.

    build, claims    the entry points: lower a part; say which nodes can be lowered and why others cannot
    interpret/       groups run by numpy, the reference for kernels
    rules/           one file per family of operators: from a node to groups
    states           outputs that are inputs with elements appended
    lowering         the state that rules work on
    fusion/          rewrites of groups
    analysis/        what is known about values before a run
    expression_builder, views    builders of scalar expressions; views without copies
    groups/          the groups themselves
    check, sizes     conditions on symbolic sizes, and their arithmetic

Each line may import those below it.
"""
