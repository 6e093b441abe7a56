"""Findings and what could not be checked, in the words of one language (words/)."""

import configparser
import functools
import os
import pkgutil
import re
import shlex
import shutil
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass

from .findings import HANG, NOTE, WRONG, kind_of

LANGUAGES = ("en", "zh")
UNUSED = r"Parameter indices which did not receive grad for rank \d+:[ \d]{1,80}"


@functools.cache
def read_words(language: str) -> dict[str, list[str]]:
    """Name -> its lines in the language's file."""
    text = pkgutil.get_data(__package__, f"words/{language}.txt").decode()
    parser = configparser.ConfigParser(delimiters="=", interpolation=None)
    parser.read_string(f"[words]\n{text}")
    return {name: value.split("\n") for name, value in parser["words"].items()}


def explain(language: str, which: str) -> str:
    """All that the doctor has to say of a finding."""
    words = read_words(language)
    text = pkgutil.get_data(__package__, f"words/explained.{language}.md").decode()
    parts = dict(re.findall(r"<!-- (\w+) -->\n(.*?)\s*(?=<!--|\Z)", text, re.S))
    kinds = [lines for name, lines in words.items() if name.split(":")[0] == which]
    advices = dict.fromkeys(f"-> {advice}" for _, *rest in kinds for advice in rest)
    title = f"{words[kind_of(which).severity][0]}  {which}"
    return "\n".join([title, "", parts[which], "", *advices])


def own_call() -> str:
    """The doctor, as it was called."""
    name = os.path.basename(sys.argv[0])
    if shutil.which(name) == sys.argv[0]:  # an installed command: the shell puts its folder before
        return name
    words = sys.orig_argv
    return shlex.join(words[: len(words) - len(sys.argv) + 1])


@dataclass
class Finding:
    id: str
    severity: str
    file: str | None
    line: int | None
    seen: str
    advice: str
    name: str  # the id, and behind a colon its kind
    values: dict  # what the words are filled with


class Report:
    """Collects findings and what could not be checked."""

    def __init__(self, language: str, allowed: tuple[str, ...] = ()) -> None:
        self.language = language
        self.words = read_words(language)
        self.allowed = allowed  # findings that are notes here
        self.findings: list[Finding] = []
        self.not_checked: dict[str, str] = {}
        self.checked: list[str] = []
        self.all_ranks = True  # or only those of one machine of several
        self.taken_out: set[str] = set()  # findings: the run lacked what they look at
        self.fsdp = False  # words of DDP would mislead
        self.broken = False  # the script ended by an error
        self.cut = ""  # where, and why, the recorder had to stop
        self.options = ""  # of the doctor, in what it says to type
        self.mild = False  # findings are only notes, whatever their severity
        self.differs = False  # a comparison with another run has found something
        self.blocked: dict[str, str] = {}  # findings whose probes are missing, and why

    def find(self, name: str, at: list | None, /, mild: bool = False, **values: object) -> None:
        which = name.split(":")[0]
        if self.has(which) or which in self.blocked or which in self.taken_out:
            return
        seen, advice, *_ = [*self.lines(name), *self.lines(which)[1:]]
        severity = kind_of(name).severity
        if which in self.allowed:
            advice = self.say("allowed")
        if mild or self.mild or which in self.allowed:
            severity = NOTE
        file, line = at or (None, None)
        text = seen.format(**values)
        self.findings.append(Finding(which, severity, file, line, text, advice, name, values))

    def told(self, found: Finding, doctor: str = "python doctor") -> list[str]:
        """The lines of a finding. doctor: how it was called."""
        at = f"  {short([found.file, found.line])}" if found.file else ""
        title = f"{self.word(found.severity)}  {found.id}{at}"
        more = f"{doctor} --explain {found.id}"
        return [title, f"  {found.seen}", f"  -> {found.advice}", f"     {more}"]

    def lines(self, name: str) -> list[str]:
        """What was seen, and what to do: under FSDP in words of its own, if there are some."""
        own = f"{name}:fsdp"
        return self.words[own if self.fsdp and own in self.words else name]

    def say(self, name: str, **values: object) -> str:
        return self.words[name][0].format(**values)

    def advice(self, name: str, **values: object) -> str:
        """What to do, if the words know it."""
        return "".join(self.words[name][1:2]).format(**values)

    def word(self, text: str) -> str:
        """One of the words, by its name; any other text as it is."""
        return self.words.get(text, [text])[0]

    def headed(self, name: str, text: str) -> str:
        """A Chinese colon has its space in itself."""
        head = self.say(name)
        return head + text if head.endswith("：") else f"{head} {text}"

    def skip(self, which: str, why: str) -> None:
        self.not_checked[which] = self.word(why)

    def has(self, *names: str) -> bool:
        return any(finding.id in names for finding in self.findings)

    def text(self) -> str:
        call = own_call() + self.options
        parts = ["\n".join(self.told(finding, call)) + "\n" for finding in self.findings]
        nothing = "nothing_else" if self.differs else "nothing"
        nothing = "until" if self.broken else "recorded" if self.cut else nothing
        parts = parts or [self.say(nothing) + "\n"]
        parts += [self.headed("checked", ", ".join(self.checked))] if self.checked else []
        reasons = defaultdict(list)
        for name, why in self.not_checked.items():
            reasons[why].append(name)
        for why, names in reasons.items():
            parts.append(self.headed("not_checked", f"{', '.join(names)} ({why})"))
        return "\n".join(parts)

    def json(self) -> dict:
        not_checked = [{"id": name, "why": why} for name, why in self.not_checked.items()]
        findings = [asdict(finding) for finding in self.findings]
        return {"findings": findings, "checked": self.checked, "not_checked": not_checked}

    def failed(self) -> bool:
        return any(finding.severity in (WRONG, HANG) for finding in self.findings)


def listed(values: list, most: int = 8) -> str:
    """Ranks, numbers or files, with commas; of many the first."""
    texts = [str(getattr(value, "rank", value)) for value in values]
    texts = [text if text.isprintable() else repr(text) for text in texts[: most + 1]]
    return ", ".join(texts[:most]) + (" …" if len(texts) > most else "")


def short(at: list | None) -> str:
    """file:line, from the current folder if it lies there."""
    if not at:
        return "?"
    file = at[0].removeprefix(os.getcwd() + os.sep)
    return f"{file}:{at[1]}" if at[1] else file


def last_line(error: str) -> str:
    """Of what repr() makes of an error; of one that a loader's worker passes on, its own line."""
    if "Original Traceback" in error:
        error = error.rstrip("')\"\\n").rpartition("\\n")[2] + " in a DataLoader worker"
    if len(error) <= 200:
        return error
    cut = (error[:198].rpartition(" ")[0] or error[:198]) + " …"
    unused = re.search(UNUSED, error[198:])  # what DDP says last of all
    return f"{cut} {unused[0].strip()} …" if unused else cut
