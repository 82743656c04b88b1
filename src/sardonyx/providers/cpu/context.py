"""What lies at the head of a run's memory: the words that native code and Python both know."""

from __future__ import annotations


class Context:
    """The int64 slots at the head of a run's context. Those that threads fight over have a cache line of their own."""

    ERROR, ERROR_STEP, ERROR_VALUE, CANCEL, DEADLINE, BASES, SCRATCH, SCRATCH_STRIDE = range(8)
    STEPS, ARGS, FIRST, LAST, STOP, SPIN, PROFILE, PROFILE_THREADS = range(8, 16)
    OBJECTS, OBJECT_COUNT, OBJECT_BASE, COUNTERS, NEXT, REACHED, PAUSE_AT, TEAM = range(16, 24)
    ARRIVED, GENERATION, SLEEPERS, WANTED = 24, 32, 40, 48
    SLOTS = 56


class Code:
    """What the error word may hold."""

    INDEX, ADDRESS, CANCELLED, LATE, ENDLESS, SIZES = range(1, 7)


STEP_SLOT, WORDS_PER_BUFFER = 0, 4
COUNTER_WORDS = 8
"""Words of a step's counters, a cache line: how many tiles of each of its shares are taken. They are 0 before a run."""
