"""Which numbers of a printed line are results, and whether two of them are the same."""

import math
import re

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
UNITS = r"(?:s|sec|secs|seconds?|ms|min|minutes|h|hours?|[kMG]i?B|\w*/s(?:ec)?(?:/\w+)?|s/\w+)"
CLOCKED = (
    r"\w*(?:time|elapsed|speed|second|throughput|memory)\w*|\b(?:eta|data|(?:max_)?mem|v_num)\b|"
    r"memory (?:before|consumed|used)[^\d:=|]*|"  # at the end of the train (end-begin): 16
    r"\w+\s*\(t\)|\w+/s(?:ec)?\b"  # Batch (t): 0.2; img/s: 90
)
BAR = r"(\d+)%\|[^|]*\|\s*\S+/\S+"  # of tqdm: how many batches, which may be of a rank's share
CLOCKS = (
    rf"{BAR}|"
    r"\d+:\d\d(?::\d\d)?(?:[.,]\d+)?|"
    rf"(?i:{CLOCKED})(?:\s*\(m?s\))?\W*{NUMBER}(?:\s*\(\s*{NUMBER}\s*\))?|"  # and its mean
    rf"{NUMBER}\s*{UNITS}\b(?!\s*[:=])"
)
EARLY = r"(?i)\b(val|eval|test)[a-z]*\W+(loss|acc).*\d\.\d"
# No results: a word with a slash in it, with letters and a whole number, or that is a date.
WORD = r"[^\s=:,;'\"()\[\]{}|<>]+"
DATE = r"(19|20)\d\d[-_.]?(0[1-9]|1[0-2])[-_.]?([0-2]\d|3[01])([-_T]?\d{2,6})*"


def results(line: str) -> str:
    """The line, with ~ in place of times, speeds and names."""
    return re.sub(WORD, nameless, re.sub(CLOCKS, "~", line))


def nameless(word: re.Match) -> str:
    """A word, or ~ where it is a path, a file, a hash or a date: numbers in it are no results."""
    text = word[0]
    if re.fullmatch(f"{NUMBER}\\W*", text) or not re.search(r"\d", text):
        return text
    named = re.search(r"[A-Za-z]", text) and ("/" in text or not re.search(r"\d\.\d", text))
    return "~" if named or re.fullmatch(DATE, text.rstrip(".")) else text


def unit(number: str) -> float:
    """What its last printed digit stands for, and a little more; a whole number is exact."""
    digits, _, exponent = number.lower().partition("e")
    digits = len(digits.partition(".")[2])
    return 1.01 * 10.0 ** (int(exponent or 0) - digits) if digits or exponent else 0.0


def others(mine: str, theirs: str, tolerance: float) -> list[tuple[str, str, str]]:
    """Numbers that are other ones, by more than rounding: the words before each, and both."""
    found = []
    pairs = zip(re.finditer(NUMBER, mine), re.finditer(NUMBER, theirs), strict=True)
    for one, other in pairs:
        last = min(unit(one[0]), unit(other[0]))
        if not math.isclose(float(one[0]), float(other[0]), rel_tol=tolerance, abs_tol=last):
            found.append((mine[: one.start()].lower(), one[0], other[0]))
    return found
