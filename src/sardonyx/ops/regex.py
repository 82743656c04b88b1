"""Regular expressions in RE2's syntax, matched in time linear in the text.

A pattern is parsed to a tree and compiled to a nondeterministic automaton, which runs as a deterministic one whose
states
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial

from sardonyx.errors import InvalidArgument, NotImplemented, OutOfBudget
from sardonyx.limits import check_time

MAX_REPEAT = 1000
"""RE2's bound on {n,m}."""
MAX_NESTING = 100
MAX_STATES = 20_000
MAX_CACHED = 10_000
"""Deterministic states that are cached; when there are more, the cache is cleared."""
MAX_STEPS = 5_000_000
"""Automaton states that may be visited for one string, in about two seconds."""

Test = Callable[[str], bool]

_WORD = frozenset(string.ascii_letters + string.digits + "_")
_SPACE = frozenset("\t\n\f\r ")
_DIGIT = frozenset(string.digits)
_PERL: dict[str, frozenset[str]] = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, frozenset[str]] = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset("\t "),
    "cntrl": frozenset([*map(chr, range(32)), "\x7f"]),
    "digit": _DIGIT,
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": _SPACE | {"\v"},
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


@lru_cache(maxsize=256)
def compile(pattern: str) -> Automaton:
    """The automaton of a pattern; InvalidArgument if the pattern is invalid."""
    return Automaton(_Parser(pattern).parse())


@dataclass
class Tree:
    """``kind`` is empty, char, assert, cat, or, repeat."""

    kind: str
    parts: list[Tree] = field(default_factory=list)
    test: Test | None = None
    name: str = ""
    least: int = 0
    most: int | None = None


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0
        self.flags: frozenset[str] = frozenset()
        self.depth = 0

    def parse(self) -> Tree:
        tree = self._alternatives()
        if self.at < len(self.pattern):
            raise self._error("unexpected )")
        return tree

    def _error(self, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"the pattern is not a valid regular expression: {what}", where=f"position {self.at}", got=self.pattern
        )

    def _peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        if found:
            self.at += len(text)
        return found

    def _next(self) -> str:
        if self.at >= len(self.pattern):
            raise self._error("it ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def _until(self, end: str) -> str:
        stop = self.pattern.find(end, self.at)
        if stop < 0:
            raise self._error(f"{end!r} is missing")
        text, self.at = self.pattern[self.at : stop], stop + len(end)
        return text

    def _alternatives(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self._error("it is nested too deeply")
        flags = self.flags
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self.flags = flags
        self.depth -= 1
        return branches[0] if len(branches) == 1 else Tree("or", branches)

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.pattern) and not self._peek("|") and not self._peek(")"):
            if self._take("\\Q"):
                stop = self.pattern.find("\\E", self.at)
                literal = self.pattern[self.at :] if stop < 0 else self.pattern[self.at : stop]
                self.at += len(literal) + (0 if stop < 0 else 2)
                parts += [self._char(frozenset(c)) for c in literal]
                if literal:
                    parts[-1] = self._repeated(parts[-1])
            else:
                parts.append(self._repeated(self._atom()))
        return Tree("cat", parts)

    def _repeated(self, tree: Tree) -> Tree:
        count = 0
        while True:
            bounds = self._bounds()
            if bounds is None:
                return tree
            count += 1
            if count > 1:
                raise self._error("repetition of a repetition")
            self._take("?")
            tree = Tree("repeat", [tree], least=bounds[0], most=bounds[1])

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        stop = self.pattern.find("}", self.at)
        if not self._peek("{") or stop < 0:
            return None
        low, comma, high = self.pattern[self.at + 1 : stop].partition(",")
        if not low.isdecimal() or not low.isascii() or (high and not (high.isdecimal() and high.isascii())):
            return None
        self.at = stop + 1
        if len(low) > 4 or len(high) > 4:
            raise self._error(f"more than {MAX_REPEAT} repetitions")
        least = int(low)
        most = least if not comma else int(high) if high else None
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self._error(f"repetitions out of order, or more than {MAX_REPEAT}")
        return least, most

    def _atom(self) -> Tree:
        c = self._next()
        if c == "(":
            return self._group()
        if c == "[":
            return self._class()
        if c == ".":
            return Tree("char", test=(lambda _: True) if "s" in self.flags else (lambda x: x != "\n"))
        if c in "^$":
            return Tree("assert", name=("line " if "m" in self.flags else "text ") + ("start" if c == "^" else "end"))
        if c == "\\":
            return self._escape()
        if c in "*+?":
            raise self._error(f"nothing to repeat before {c}")
        return self._char(frozenset(c))

    def _group(self) -> Tree:
        outer = self.flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                self._until(">")
            else:
                flags = ""
                while not self._peek(":") and not self._peek(")"):
                    flags += self._next()
                on, _, off = flags.partition("-")
                if not set(on + off) <= set("imsU"):
                    raise self._error(f"unknown group (?{flags}")
                self.flags = (self.flags | set(on)) - set(off)
                if self._take(")"):
                    return Tree("empty")
                self._next()
        tree = self._alternatives()
        if not self._take(")"):
            raise self._error("missing )")
        self.flags = outer
        return tree

    def _escape(self) -> Tree:
        c = self._next()
        asserts = {"A": "text start", "z": "text end", "b": "word edge", "B": "no word edge"}
        if c in asserts:
            return Tree("assert", name=asserts[c])
        if c == "C":
            return Tree("char", test=lambda _: True)
        test = self._set_escape(c)
        return self._char(frozenset(self._literal_escape(c))) if test is None else Tree("char", test=test)

    def _set_escape(self, c: str) -> Test | None:
        if c.lower() in _PERL:
            members = _PERL[c.lower()]
            return (lambda x: x in members) if c.islower() else (lambda x: x not in members)
        if c in "pP":
            name = self._next()
            if name == "{":
                name = self._until("}")
            negated = name.startswith("^") ^ (c == "P")
            name = name.lstrip("^")
            if name == "Any":
                return lambda _: not negated
            if not (1 <= len(name) <= 2 and name[0] in "CLMNPSZ"):
                raise NotImplemented("a regular expression names a Unicode script", got=name)
            return lambda x: unicodedata.category(x).startswith(name) != negated
        return None

    def _literal_escape(self, c: str) -> str:
        if c in _ESCAPES:
            return _ESCAPES[c]
        if c == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            if not set(digits) <= set(string.hexdigits) or not digits or len(digits) > 6 or int(digits, 16) > 0x10FFFF:
                raise self._error("bad code point")
            return chr(int(digits, 16))
        if c in "01234567":
            digits = c
            while len(digits) < 3 and self.at < len(self.pattern) and self.pattern[self.at] in "01234567":
                digits += self._next()
            if c != "0" and len(digits) == 1:
                raise self._error("there are no back references")
            return chr(int(digits, 8))
        if c in _WORD:
            raise self._error(f"unknown escape \\{c}")
        return c

    def _char(self, members: frozenset[str]) -> Tree:
        if "i" in self.flags:
            members = frozenset(v for m in members for v in (m, m.lower(), m.upper()))
        return Tree("char", test=members.__contains__)

    def _class(self) -> Tree:
        negated = self._take("^")
        tests: list[Test] = []
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        first = True
        while first or not self._peek("]"):
            first = False
            if self._take("[:"):
                name = self._until(":]")
                if name.lstrip("^") not in _POSIX:
                    raise self._error(f"unknown class [:{name}:]")
                members = _POSIX[name.lstrip("^")]
                outside = name.startswith("^")
                tests.append(partial(_is_member, members, outside))
                continue
            low = self._class_char(tests)
            if low is None:
                continue
            if self._peek("-") and not self._peek("-]"):
                self._next()
                high = self._class_char([])
                if high is None or high < low:
                    raise self._error("bad range in a class")
                ranges.append((low, high))
            else:
                singles.add(low)
        self._next()
        ignore_case = "i" in self.flags

        def contains(x: str) -> bool:
            forms = {x, x.lower(), x.upper()} if ignore_case else (x,)
            return any(
                f in singles or any(a <= f <= b for a, b in ranges) or any(test(f) for test in tests) for f in forms
            )

        return Tree("char", test=lambda x: contains(x) != negated)

    def _class_char(self, tests: list[Test]) -> str | None:
        """One character of a class; None if it was a predefined set, which is added to ``tests``."""
        c = self._next()
        if c != "\\":
            return c
        c = self._next()
        test = self._set_escape(c)
        if test is not None:
            tests.append(test)
            return None
        return self._literal_escape(c)


def _is_member(members: frozenset[str], outside: bool, x: str) -> bool:
    return (x in members) != outside


@dataclass(eq=False)
class State:
    """Reads one character if it has a test; else continues with all of ``then`` if its assertion holds."""

    test: Test | None = None
    condition: str = ""
    then: list[State] = field(default_factory=list)


class Automaton:
    def __init__(self, tree: Tree) -> None:
        self._count = 0
        self.accept = self._state()
        self._start = (frozenset([self._build(tree, self.accept)]), "start")
        self._steps: dict[tuple[frozenset[State], str, str], tuple[bool, frozenset[State], str]] = {}
        self._moves: dict[tuple[frozenset[State], str, str], tuple[frozenset[State], str]] = {}

    def _state(self, test: Test | None = None, condition: str = "", then: tuple[State, ...] = ()) -> State:
        self._count += 1
        if self._count > MAX_STATES:
            raise OutOfBudget("the regular expression is too large", expected=f"at most {MAX_STATES} states")
        return State(test, condition, list(then))

    def _build(self, tree: Tree, then: State) -> State:
        """A state that matches the tree and then continues with ``then``."""
        if tree.kind == "char":
            return self._state(test=tree.test, then=(then,))
        if tree.kind == "assert":
            return self._state(condition=tree.name, then=(then,))
        if tree.kind == "or":
            return self._state(then=tuple(self._build(p, then) for p in tree.parts))
        if tree.kind == "cat":
            for part in reversed(tree.parts):
                then = self._build(part, then)
            return then
        if tree.kind == "repeat":
            (part,) = tree.parts
            if tree.most is None:
                again = self._state(then=(then,))
                again.then.append(self._build(part, again))
                then = again
            else:
                for _ in range(tree.most - tree.least):
                    then = self._state(then=(self._build(part, then), then))
            for _ in range(tree.least):
                then = self._build(part, then)
        return then

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        states, before = self._start
        steps = 0
        for c in text:
            key = (states, before, c)
            move = self._moves.get(key)
            if move is None:
                reached = self._closure(states, before, c)
                steps += len(reached)
                check_time()
                if steps > MAX_STEPS:
                    raise OutOfBudget("matching a regular expression takes too long", got=f"{len(text)} characters")
                move = frozenset(n for s in reached if s.test is not None and s.test(c) for n in s.then), _kind(c)
                if len(self._moves) < MAX_CACHED:
                    self._moves[key] = move
            states, before = move
            if not states:
                return False
        return self.accept in self._closure(states, before, "")

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """The leftmost longest match, then the next one after it, and so on. An empty match advances by one
        character.
        """
        begin = steps = 0
        while begin <= len(text):
            end, steps = self._longest(text, begin, steps)
            if end is None:
                begin += 1
                continue
            yield begin, end
            begin = max(end, begin + 1)

    def _longest(self, text: str, begin: int, steps: int) -> tuple[int | None, int]:
        """The end of the longest match that begins at ``begin``, and the steps spent on this text so far."""
        states, before = self._start
        if begin:
            before = _kind(text[begin - 1])
        end: int | None = None
        for at in range(begin, len(text) + 1):
            after = text[at] if at < len(text) else ""
            accepts, states, before, visited = self._step(states, before, after)
            steps += visited
            if steps > MAX_STEPS:
                raise OutOfBudget("matching a regular expression takes too long", got=f"{len(text)} characters")
            end = at if accepts else end
            if not states:
                break
        return end, steps

    def _step(self, states: frozenset[State], before: str, after: str) -> tuple[bool, frozenset[State], str, int]:
        """Whether a match ends before ``after``, the states after reading it, and the number of states visited."""
        key = (states, before, after)
        found = self._steps.get(key)
        if found is not None:
            return *found, 1
        reached = self._closure(states, before, after)
        then = frozenset(n for s in reached if s.test is not None and after and s.test(after) for n in s.then)
        found = self.accept in reached, then, _kind(after)
        if len(self._steps) < MAX_CACHED:
            self._steps[key] = found
        return *found, len(reached)

    def _closure(self, states: frozenset[State], before: str, after: str) -> set[State]:
        """The states reachable without reading a character, between ``before`` and ``after`` ("" at the end)."""
        reached: set[State] = set()
        todo = list(states)
        while todo:
            state = todo.pop()
            if state not in reached:
                reached.add(state)
                if state.test is None and (not state.condition or _condition_holds(state.condition, before, after)):
                    todo += state.then
        return reached


def _kind(c: str) -> str:
    return "word" if c in _WORD else "newline" if c == "\n" else "other"


def _condition_holds(condition: str, before: str, after: str) -> bool:
    if condition == "text start":
        return before == "start"
    if condition == "text end":
        return after == ""
    if condition == "line start":
        return before in ("start", "newline")
    if condition == "line end":
        return after in ("", "\n")
    edge = (before == "word") != (after in _WORD)
    return edge if condition == "word edge" else not edge
