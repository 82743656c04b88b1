"""Memory layouts that native code and Python share: the context of a run, rows of the step table, mailboxes."""

from __future__ import annotations


class Context:
    """The int64 slots of a run's context. Contended slots have a cache line of their own."""

    ERROR, ERROR_STEP, ERROR_VALUE, CANCEL, DEADLINE, BASES, SCRATCH, SCRATCH_STRIDE = range(8)
    STEPS, ARGS, FIRST, LAST, STOP, SPIN, PROFILE, PROFILE_THREADS = range(8, 16)
    OBJECTS, OBJECT_COUNT, OBJECT_BASE, COUNTERS, NEXT, REACHED, PAUSE_AT, INPUT_COUNT = range(16, 24)
    ARRIVED, GENERATION, SLEEPERS = 24, 32, 40
    COUNTER_NBYTES, SIZED, SIZED_COUNT, NAME_COUNT, PROGRAM, PROGRAM_COUNT, DTYPES = range(48, 55)
    CPUS, CPU_WORDS = 56, 8
    TEAM, WANTED, LEFT, ROWS, IS_NEW = range(67, 72)
    SLOTS = 72
    """``TEAM`` to ``IS_NEW`` and the sizes of named dimensions, which follow the slots, are written at once by Python
    when the shape changes. The values computed by ``PROGRAM`` follow the sizes. ``ROWS`` is the address of the
    numpy array of the step table; ``IS_NEW`` says that the last run had another shape; ``CPUS`` are those that threads
    were last seen on (``spin_park``)."""


class Sized:
    """A word of the argument blocks that depends on sizes: its position, the value that it takes, and an offset."""

    AT, BY, PLUS = range(3)
    WORDS = 3


class Row:
    """The int64 words of a row of the step table."""

    KERNEL, ARGS, BARRIER, WHO = range(4)
    WORDS = 4


NONE, MEET, CONTROL = range(3)
"""In front of a row: nothing, a barrier, or a barrier whose last thread carries out the row (a control step)."""

ALL, ONE, NOBODY = range(3)
"""Who carries out a row: each thread its share; the first thread all of it, unless there was an error; nobody."""

PAUSED = 1 << 40
"""Added to the next step by a control step that wants Python to handle signals first."""


class Stamp:
    """The int64 words that a profile holds for a step and a thread. In front of the first step's is a row of the team:
    its ``WORKER`` is the number, from 1, of the worker that is a thread of this run; 0 for the caller."""

    FIRST, TOTAL, NOW, WAITED = range(4)
    """When it first began; how long it took in all; when it last began; how long the thread waited at barriers in front
    of it, in all."""
    WORDS = 4
    WORKER = 0


class Mailbox:
    """The int64 words of a worker's mailbox: two cache lines. The first of a team's says how many follow."""

    STATE, SLEEPERS, CONTEXT, THREAD, THREADS, EXECUTE, STARTED, ENDED, WAITERS = 0, 1, 2, 3, 4, 5, 8, 9, 10
    """``EXECUTE``, also in the first box, is the address of the function that executes steps."""
    WORDS = 16
    COUNT = 0


class Code:
    """What the error word may hold."""

    INDEX, ADDRESS, CANCELLED, LATE, ENDLESS, SIZES, TOO_LONG, LOOK, REGION, ARRAY, DIVISOR, FULL = range(1, 13)
    """``TOO_LONG`` is a size. ``REGION`` has coordinates that are not finite or too large. ``ARRAY`` is an input of
    another type, or with strides. ``DIVISOR`` is a negative number that ``//`` or ``%`` divides by. ``LOOK`` is no
    error: after so many runs, the choice of threads is looked at again. ``FULL``: a Loop needs room for more rows.
    """


STEP_SLOT, WORDS_PER_BUFFER = 0, 4
COUNTERS = 8
"""Counters of a step, ``COUNTER_NBYTES`` each, a word for every thread: how many tiles of its stretch are taken. They
are 0 before a run."""
ARENA = 0
"""The arena's place among the memories of a run."""
MAX_WORKERS = 512
