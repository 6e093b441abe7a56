"""Python's regular expressions, with their steps counted.

A matcher that backtracks as re does, over the tree that re has parsed a pattern into. It counts
each character, place and choice that it looks at, and each character that a function is given; re
leaves some of them out, and looks at no others. Whatever it finds is compared with what re finds.
"""

import functools
import re
from collections.abc import Callable, Iterator

try:
    from re import _parser as parser
except ImportError:  # Python 3.10
    import sre_parse as parser

LOOKS = ("ASSERT", "ASSERT_NOT")


class TooMany(AssertionError):
    pass


class Steps:
    def __init__(self) -> None:
        self.count = 0
        self.most = float("inf")

    def add(self, steps: int) -> None:
        self.count += steps
        if self.count > self.most:
            raise TooMany(f"more than {self.most} steps")


steps = Steps()


# ---- a tree becomes a program: (what, ...) by number ----


def test_of(what: str, value: object, ignore: bool) -> Callable[[str], bool]:
    """Whether a character is meant."""
    if what == "IN":
        parts = [test_of(str(what), value, ignore) for what, value in value]
        negated = str(value[0][0]) == "NEGATE"
        parts = parts[negated:]
        return functools.cache(lambda one: any(part(one) for part in parts) is not negated)
    if what == "NOT_LITERAL":
        return lambda one: one != chr(value)
    if what == "ANY":
        return lambda one: one != "\n"
    if what == "RANGE":
        low, high = value
        return lambda one: any(low <= ord(c) <= high for c in {one, one.lower()})
    if what == "CATEGORY":
        name = str(value).removeprefix("CATEGORY_")
        known = {"DIGIT": str.isdecimal, "SPACE": str.isspace}
        known["WORD"] = lambda one: one.isalnum() or one == "_"
        own = known[name.removeprefix("NOT_")]
        return (lambda one: not own(one)) if name.startswith("NOT_") else own
    if what == "NEGATE":
        return lambda one: False
    assert what == "LITERAL", what
    return (lambda one: one.lower() == chr(value).lower()) if ignore else chr(value).__eq__


def is_one(tree: list) -> bool:
    return len(tree) == 1 and str(tree[0][0]) in ("IN", "LITERAL", "NOT_LITERAL", "ANY")


def emit(tree: list, ignore: bool, to: list) -> None:
    for what, value in tree:
        what = str(what)
        if what == "SUBPATTERN":
            group, added, dropped, inner = value
            assert not dropped
            if group:
                to.append(("save", 2 * group))
            emit(inner, ignore or bool(added & re.I), to)
            if group:
                to.append(("save", 2 * group + 1))
        elif what == "BRANCH":
            ends = []
            for n, inner in enumerate(value[1]):
                last = n == len(value[1]) - 1
                split = len(to)
                to += [] if last else [None]
                emit(inner, ignore, to)
                ends.append(len(to))
                to += [] if last else [None]
                if not last:
                    to[split] = ("split", split + 1, len(to))
            for end in ends[:-1]:
                to[end] = ("jump", len(to))
        elif what == "MAX_REPEAT":
            emit_repeat(*value, ignore, to)
        elif what in LOOKS:
            direction, inner = value
            program = program_of(list(inner), ignore)
            back = parser.SubPattern.getwidth(inner)[1] if direction < 0 else 0
            to.append(("look", program, back, what == "ASSERT"))
        elif what == "GROUPREF":
            to.append(("ref", value, ignore))
        elif what == "AT":
            to.append(("at", str(value)))
        else:
            to.append(("one", test_of(what, value, ignore)))


def emit_repeat(low: int, high: int, inner: list, ignore: bool, to: list) -> None:
    inner = list(inner)
    endless = high is parser.MAXREPEAT
    if is_one(inner):
        test = test_of(str(inner[0][0]), inner[0][1], ignore)
        to.append(("run", test, low, float("inf") if endless else high))
        return
    for _ in range(low):
        emit(inner, ignore, to)
    if endless:
        split = len(to)
        to.append(None)
        emit(inner, ignore, to)
        to.append(("jump", split))
        to[split] = ("split", split + 1, len(to))
        return
    splits = []
    for _ in range(high - low):
        splits.append(len(to))
        to.append(None)
        emit(inner, ignore, to)
    for split in splits:
        to[split] = ("split", split + 1, len(to))


def program_of(tree: list, ignore: bool) -> list:
    program = []
    emit(tree, ignore, program)
    return [*program, ("over",)]


@functools.cache
def parsed(pattern: str, flags: int) -> list:
    tree = parser.parse(pattern, flags)
    return program_of(list(tree), bool(tree.state.flags & re.I))


# ---- and runs ----


def is_at(where: str, text: str, place: int) -> bool:
    if where in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        return place == 0
    if where == "AT_END":
        return place == len(text) or text[place:] == "\n"
    assert where == "AT_BOUNDARY", where
    sides = [text[n : n + 1] for n in (place - 1, place) if n >= 0]
    return len({side.isalnum() or side == "_" for side in sides}) == 2 or (
        place == 0 and (text[:1].isalnum() or text[:1] == "_")
    )


def ends_at(program: list, text: str, place: int, groups: dict, whole: bool = False) -> int | None:
    """Where a match that begins at this place ends."""
    number = 0
    left = []  # what else may be tried: number, the lowest place, the highest, groups
    while True:
        steps.add(1)
        what, *more = program[number]
        fits = True
        number += 1
        if what == "one":
            fits = place < len(text) and more[0](text[place])
            place += 1
        elif what == "run":
            test, low, high = more
            begin = place
            while place < len(text) and place - begin < high and test(text[place]):
                place += 1
            steps.add(place - begin)
            fits = place - begin >= low
            if fits and place - begin > low:
                left.append([number, begin + low, place - 1, dict(groups)])
        elif what == "split":
            left.append([more[1], place, place, dict(groups)])
            number = more[0]
        elif what == "jump":
            number = more[0]
        elif what == "save":
            groups[more[0]] = place
        elif what == "look":
            inner, back, wanted = more
            inside = dict(groups)
            found = place >= back and ends_at(inner, text, place - back, inside) is not None
            fits = found is wanted
            groups = inside if fits and found else groups
        elif what == "ref":
            begin, end = groups[2 * more[0]], groups[2 * more[0] + 1]
            steps.add(end - begin)
            same = text[begin:end], text[place : place + end - begin]
            fits = same[0] == same[1] or (more[1] and same[0].lower() == same[1].lower())
            place += end - begin
        elif what == "at":
            fits = is_at(more[0], text, place)
        elif not whole or place == len(text):
            return place
        else:
            fits = False
        if not fits:
            if not left:
                return None
            entry = left[-1]
            number, place, groups = entry[0], entry[2], dict(entry[3])
            entry[2] -= 1
            if entry[2] < entry[1]:
                left.pop()


# ---- the functions of re that the doctor calls ----


def found(pattern: str, text: str, flags: int, place: int, how: str) -> re.Match | None:
    program = parsed(pattern, flags)
    places = range(place, len(text) + 1) if how == "search" else [place]
    ends = ((at, ends_at(program, text, at, {}, how == "fullmatch")) for at in places)
    mine = next(((at, end) for at, end in ends if end is not None), None)
    real = getattr(re.compile(pattern, flags), how)(text, place)
    assert mine == (real and real.span()), (pattern, text[:200], mine, real)
    return real


def once(how: str, pattern: str, text: str, flags: int = 0) -> re.Match | None:
    steps.add(len(text))
    return found(pattern, text, flags, 0, how)


search = functools.partial(once, "search")
match = functools.partial(once, "match")
fullmatch = functools.partial(once, "fullmatch")
Match = re.Match


def finditer(pattern: str, text: str, flags: int = 0) -> Iterator[re.Match]:
    steps.add(len(text))
    place = 0
    while one := found(pattern, text, flags, place, "search"):
        yield one
        place = one.end()
        assert one[0], "a pattern that finds nothing at all"


def findall(pattern: str, text: str, flags: int = 0) -> list:
    return [one[1] if one.re.groups else one[0] for one in finditer(pattern, text, flags)]


def sub(pattern: str, by: object, text: str, flags: int = 0) -> str:
    parts, end = [], 0
    for one in finditer(pattern, text, flags):
        parts += [text[end : one.start()], by(one) if callable(by) else one.expand(by)]
        end = one.end()
    return "".join([*parts, text[end:]])
