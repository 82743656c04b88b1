"""Loads ELF objects of kernels: lays out sections in memory and resolves relocations.

A kernel's object holds code, constants and perhaps calls of memcpy and its like, so LLVM is needed to make it but not
to load it. Code stays loaded as long as an ``Address`` of it is held.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from sardonyx import forks
from sardonyx.errors import Fail
from sardonyx.providers.cpu.machine.isa import is_x86

X86, ARM = 62, 183
SYMBOLS, RELOCATIONS = 2, 4
"""Section types."""
LOADED = 2
"""The flag of a section that occupies memory."""

_kept: list[Address] = []
"""Addresses whose code stays loaded for the life of the process."""

_placing = forks.lock()
"""Objects are loaded one at a time, because pages are made executable in place."""

Fill = tuple[str, Callable[[int, int, int], int]]


class Section(NamedTuple):
    """A header, in the order of the file."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    each: int


class Symbol(NamedTuple):
    name: str
    section: int
    """0 for an undefined symbol."""
    value: int


class Object:
    """A 64-bit little-endian ELF object."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        (self.machine,) = struct.unpack_from("<H", content, 0x12)
        (at,), (each, count) = struct.unpack_from("<Q", content, 0x28), struct.unpack_from("<HH", content, 0x3A)
        self.sections = [Section(*struct.unpack_from("<IIQQQQIIQQ", content, at + i * each)) for i in range(count)]

    def symbols(self) -> list[Symbol]:
        table = next((s for s in self.sections if s.kind == SYMBOLS), None)
        if table is None:
            return []
        names = self.sections[table.link].offset
        return [
            Symbol(self._text(names + name), section, value)
            for name, _, _, section, value, _ in struct.iter_unpack(
                "<IBBHQQ", self.content[table.offset : table.offset + table.size]
            )
        ]

    def _text(self, at: int) -> str:
        return self.content[at : self.content.index(b"\0", at)].decode()

    def relocations(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Section, offset, type, symbol and addend."""
        for section in self.sections:
            if section.kind == RELOCATIONS and self.sections[section.info].flags & LOADED:
                rows = self.content[section.offset : section.offset + section.size]
                for offset, info, addend in struct.iter_unpack("<QQq", rows):
                    yield section.info, offset, info & 0xFFFFFFFF, info >> 32, addend


def undefined_symbols(content: bytes) -> set[str]:
    """The symbols that an object imports."""
    return {s.name for s in Object(content).symbols() if s.name and not s.section}


class Address(int):
    """The address of a function of a loaded object. The object is unloaded with the last of them, unless ``keep`` is
    called."""

    _pages: tuple[int, int] | None = None
    nbytes = 0
    """Bytes of memory that the object occupies."""

    @classmethod
    def of(cls, function: int, base: int, nbytes: int) -> Address:
        made = cls(function)
        made._pages, made.nbytes = (base, nbytes), -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return made

    def keep(self) -> None:
        """Keep the object loaded for the life of the process: threads may be executing it."""
        self._pages = None

    def __del__(self) -> None:
        if self._pages is not None and sys is not None and not sys.is_finalizing():
            _library().munmap(*self._pages)


class Replaceable(Address):
    """The address of a jump to code that can be replaced while threads execute it. What was replaced stays loaded as
    long as the address is held: a thread may still be in it."""

    _codes: tuple[Address, ...] = ()

    @classmethod
    def to(cls, code: Address) -> Replaceable:
        base, nbytes = _pages(2 * mmap.PAGESIZE), 2 * mmap.PAGESIZE
        made = cls(base)
        made._pages, made.nbytes = (base, nbytes), nbytes
        jump = _jump(mmap.PAGESIZE)
        ctypes.memmove(base, jump, len(jump))
        made.replace(code)
        _seal(base, mmap.PAGESIZE)
        return made

    def keep(self) -> None:
        """Keep the jump, and all that it leads to."""
        if self._pages is not None:
            _kept.append(self)
        super().keep()

    def replace(self, code: Address) -> None:
        """Let the jump lead to this code. The target is an aligned word, which other threads read whole."""
        self._codes += (code,)
        ctypes.c_int64.from_address(self + mmap.PAGESIZE).value = code


def load(content: bytes, name: str) -> Address:
    """Load an object; returns the address of a function in it."""
    found = Object(content)
    starts, nbytes = _places(found)
    symbols = found.symbols()
    image = bytearray(nbytes)
    for i, start in starts.items():
        section = found.sections[i]
        image[start : start + section.size] = content[section.offset : section.offset + section.size]
    places = [starts.get(s.section, 0) + s.value for s in symbols]
    for i, symbol in enumerate(symbols):
        if symbol.name and not symbol.section:
            places[i] = len(image)
            image += _stub(found.machine, symbol.name)
    with _placing:
        base = _pages(len(image))
        for holder, offset, kind, number, addend in found.relocations():
            if (found.machine, kind) not in FILLS:
                raise Fail(f"the object of {name} holds a reference of unknown kind {kind}")
            code, fill = FILLS[found.machine, kind]
            at = starts[holder] + offset
            (word,) = struct.unpack_from(code, image, at)
            struct.pack_into(code, image, at, fill(word, base + at, base + places[number] + addend))
        ctypes.memmove(base, bytes(image), len(image))
        _seal(base, len(image))
    return Address.of(base + next(places[i] for i, s in enumerate(symbols) if s.name == name), base, len(image))


def _places(found: Object) -> tuple[dict[int, int], int]:
    """The offsets of the sections in memory, and their total size."""
    starts: dict[int, int] = {}
    at = 0
    for i, section in enumerate(found.sections):
        if section.flags & LOADED and section.size:
            starts[i] = at = -(-at // max(section.align, 1)) * max(section.align, 1)
            at += section.size
    return starts, -(-at // 8) * 8


def _stub(machine: int, target: str) -> bytes:
    """A jump through the address that follows it: direct calls reach 128 MiB, the C library may be farther."""
    code = {X86: "ff2502000000cccc", ARM: "5000005800021fd6"}[machine]
    address = ctypes.cast(getattr(_library(), target), ctypes.c_void_p).value
    return bytes.fromhex(code) + struct.pack("<Q", address)


def _jump(distance: int) -> bytes:
    """A jump by this many bytes, counted from its first byte."""
    if is_x86():
        return b"\xff\x25" + struct.pack("<i", distance - 6)
    return struct.pack("<II", 0x58000010 | distance // 4 << 5, 0xD61F0200)


def _low(shift: int) -> Fill:
    """The low twelve bits of an address, in units of the access."""
    return "<I", lambda word, at, target: word | (target & 0xFFF) >> shift << 10


def _page(word: int, at: int, target: int) -> int:
    """The distance between two pages, with its low two bits apart from the others."""
    pages = (target >> 12) - (at >> 12)
    return word | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


FILLS: dict[tuple[int, int], Fill] = {
    (X86, 1): ("<Q", lambda word, at, target: target),
    (X86, 2): ("<i", lambda word, at, target: target - at),
    (X86, 4): ("<i", lambda word, at, target: target - at),
    (ARM, 257): ("<Q", lambda word, at, target: target),
    (ARM, 261): ("<i", lambda word, at, target: target - at),
    (ARM, 275): ("<I", _page),
    (ARM, 277): _low(0),
    (ARM, 278): _low(0),
    (ARM, 284): _low(1),
    (ARM, 285): _low(2),
    (ARM, 286): _low(3),
    (ARM, 299): _low(4),
    (ARM, 282): ("<I", lambda word, at, target: word | (target - at) >> 2 & 0x3FFFFFF),
    (ARM, 283): ("<I", lambda word, at, target: word | (target - at) >> 2 & 0x3FFFFFF),
}
"""By machine and relocation type: how the word is read and written, and its new value."""


@cache
def _library() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _pages(nbytes: int) -> int:
    """Fresh memory that can be made executable."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at: int | None = _library().mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if at is None or at == ctypes.c_void_p(-1).value:
        raise Fail("there is no memory for code", got=os.strerror(ctypes.get_errno()))
    return at


def _seal(at: int, nbytes: int) -> None:
    """Make the memory read-only and executable."""
    if _library().mprotect(at, nbytes, mmap.PROT_READ | mmap.PROT_EXEC):
        raise Fail("the system does not let compiled code be run", got=os.strerror(ctypes.get_errno()))
