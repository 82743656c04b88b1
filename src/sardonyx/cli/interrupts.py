"""Ctrl-C as a KeyboardInterrupt that ends a command, wherever the command is.

Python raises KeyboardInterrupt wherever the program is. Some places cannot deal with it, so it is held back there and
raised a moment later. In the import of a module, C++ code may abort the process, or take it for a failed import. From a
finalizer no exception leaves: it is printed with its traceback, and the program goes on. When one leaves ``eval`` of a
text, Python later ends by the signal, not with the status that it is asked to end with.
"""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager

TYPE_CHECKING = False  # this is imported before Ctrl-C is dealt with, so it imports little
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

PLACES = ("<frozen importlib.", "<string>")
"""What file names of code begin with in which none is raised: the import system's, and those of evaluated texts."""
DELAY_S, MOST_TRIES = 0.01, 1000
"""After which an interrupt that was held back is tried again, and how often before it is raised wherever it is."""


def hold_back() -> None:
    """Hold interrupts back where they cannot be raised, from now on to the end of the process.

    A process that ignores Ctrl-C, as below nohup, or has a handler of its own is left as it is.
    """
    caller = sys._getframe(1)
    usual_hook = sys.unraisablehook
    tries = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal tries
        tries += 1
        while tries < MOST_TRIES and frame is not None and frame is not caller:
            if frame.f_code.co_filename.startswith(PLACES):
                signal.setitimer(signal.ITIMER_REAL, DELAY_S)
                return
            frame = frame.f_back
        tries = 0
        raise KeyboardInterrupt

    def not_raised(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, DELAY_S)
        else:
            usual_hook(unraisable)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGALRM, handle)
        signal.signal(signal.SIGINT, handle)
        sys.unraisablehook = not_raised


def end_at_once() -> None:
    """From now on Ctrl-C ends the process, silently: all is done and told."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def blocked() -> Iterator[None]:
    """No interrupt within the block; one that comes meanwhile is raised after it."""
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGALRM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
