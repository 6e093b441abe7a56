"""Which numbers of a printed line are results, and whether two of them are the same.

A line may be anything: each pattern takes steps in proportion to its length. So it begins only
where a run of its characters does, and a run is taken as a whole, by (?=(?P<run>...))(?P=run).
"""

import math
import re
from collections import deque
from collections.abc import Iterator

UNSIGNED = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
NUMBER = f"[-+]?{UNSIGNED}"
UNITS = r"(?:s|secs?|seconds?|ms|min|minutes|h|hours?|[kMG]i?B|[^\W\d]*/s(?:ec)?(?:/\w+)?|s/\w+)"
NAMED = "(?:time|elapsed|speed|second|throughput|memory)"
CLOCKED = (
    rf"(?<!\w)(?=\w*{NAMED})(?=(?P<word>\w+))(?P=word)|"
    rf"(?<![^\W\d])(?=[^\W\d]*{NAMED})(?=(?P<letters>[^\W\d]+))(?P=letters)(?=\.?\d)|"
    r"\b(?:eta|data|(?:max_)?mem|v_num)\b|"
    # memory used at the end of the train (end-begin): 16
    r"memory (?:before|consumed|used)(?=(?P<more>[^\d:=|]{0,60}))(?P=more)|"
    r"(?<!\w)(?=(?P<name>\w+))(?P=name)(?:\s*\(t\)|/s(?:ec)?\b)"  # Batch (t): 0.2; img/s: 90
)
# Of tqdm: how many batches, which may be of a rank's share.
BAR = r"(?<!\d)(\d+)%\|[^|]*\|\s*[^\s/|]+/[^\s|]+"
CLOCKS = (
    rf"{BAR}|"
    r"(?<!\d)\d+:\d\d(?::\d\d)?(?:[.,]\d+)?|"
    rf"(?i:{CLOCKED})(?:\s*\(m?s\))?\W*{NUMBER}(?:\s*\(\s*{NUMBER}\s*\))?|"  # and its mean
    rf"[-+]?(?<!\d){UNSIGNED}\s*{UNITS}\b(?!\s*[:=])"
)
EARLY = r"(?i)\b(val|eval|test)[a-z]*\W+(loss|acc)"
# No results: a word with a slash in it, with letters and a whole number, or that is a date.
WORD = r"[^\s=:,;'\"()\[\]{}|<>]+"
DATE = r"(19|20)\d\d[-_.]?(0[1-9]|1[0-2])[-_.]?([0-2]\d|3[01])(\d\d+)?([-_T]\d\d+)*"
BEFORE = 60  # characters in front of a number that tell what it is


def results(line: str) -> str:
    """The line, with ~ in place of times, speeds and names."""
    return re.sub(WORD, nameless, re.sub(CLOCKS, "~", line))


def nameless(word: re.Match) -> str:
    """A word, or ~ where it is a path, a file, a hash or a date: numbers in it are no results."""
    text = word[0]
    if found := re.fullmatch(rf"({NUMBER})\W*", text):
        return "~" if math.isinf(float(found[1])) else text  # a hash such as 12e4567
    if not re.search(r"\d", text):
        return text
    named = re.search(r"[A-Za-z]", text) and ("/" in text or not re.search(r"\d\.\d", text))
    return "~" if named or re.fullmatch(DATE, text.rstrip(".")) else text


def of_evaluation(line: str) -> bool:
    """Whether it names one, and a number of it."""
    named = re.search(EARLY, line)
    return bool(named and re.search(r"\d\.\d", line[named.end() :]))


def unit(number: str) -> float:
    """What its last printed digit stands for, and a little more; a whole number is exact."""
    digits, _, exponent = number.lower().partition("e")
    digits = digits.partition(".")[2]
    last = f"{'.' * bool(digits)}{'0' * (len(digits) - 1)}1e{exponent or 0}"
    return 1.01 * float(last) if digits or exponent else 0.0


def numbers_in(line: str) -> Iterator[tuple[str, str]]:
    """Each number, and the last word before it."""
    words = deque(re.finditer(r"[A-Za-z_]\w*", line))
    begin = end = 0
    for number in re.finditer(NUMBER, line):
        while words and words[0].start() < number.start():
            begin, end = words.popleft().span()
        stop = min(end, number.start())  # of top5, say, what stands before the 5
        yield line[max(begin, stop - BEFORE) : stop], number[0]


def others(mine: str, theirs: str, tolerance: float) -> list[tuple[str, str, str]]:
    """Numbers that are other ones, by more than rounding: the words before each, and both."""
    found = []
    pairs = zip(re.finditer(NUMBER, mine), re.finditer(NUMBER, theirs), strict=True)
    for one, other in pairs:
        last = min(unit(one[0]), unit(other[0]))
        if not math.isclose(float(one[0]), float(other[0]), rel_tol=tolerance, abs_tol=last):
            words = mine[max(0, one.start() - BEFORE) : one.start()].lower()
            found.append((words, one[0], other[0]))
    return found
