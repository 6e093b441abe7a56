"""Findings and what could not be checked, in the words of one language (words/)."""

import configparser
import os
import pkgutil
from collections import defaultdict
from dataclasses import asdict, dataclass

LANGUAGES = ("en", "zh")
SEVERITIES = ("wrong result", "hang ahead", "wasted", "slow", "note")
GITHUB = {"wrong result": "error", "hang ahead": "error", "note": "notice"}

# Finding: severity, and the heading that explains it. What follows a colon tells kinds of
# a finding apart; a kind that is not here is as the finding.
FINDINGS = {
    "same_samples": ("wrong result", "convert.md#step-3"),
    "overlapping_samples": ("wrong result", "convert.md#step-3"),
    "unequal_targets": ("wrong result", "convert.md#step-3"),
    "same_order": ("wrong result", "convert.md#step-5"),
    "unequal_steps": ("hang ahead", "troubleshooting.md#hang-causes"),
    "unequal_steps:skipped": ("wrong result", "troubleshooting.md#hang-causes"),
    "no_averaging": ("wrong result", "convert.md#step-4"),
    "unequal_gradients": ("wrong result", "convert.md#step-4"),
    "drifting_weights": ("wrong result", "recipes.md#plateau"),
    "untrained": ("wrong result", "convert.md#step-4"),
    "lost_gradient": ("wrong result", "convert.md#step-4"),
    "clipped": ("wrong result", "convert.md#step-4"),
    "no_sync": ("wasted", "convert.md#step-4"),
    "schedule": ("wrong result", "concepts.md#learning-rate"),
    "learning_rate": ("note", "concepts.md#learning-rate"),
    "equal_randomness": ("wasted", "recipes.md#random"),
    "wrong_evaluation": ("wrong result", "convert.md#step-6"),
    "wrong_evaluation:everyone": ("wasted", "convert.md#step-6"),
    "mean_of_means": ("note", "convert.md#step-6"),
    "unequal_buffers": ("wrong result", "recipes.md#batchnorm"),
    "collective_order": ("hang ahead", "concepts.md#collective-rule"),
    "collective_order:still": ("hang ahead", "troubleshooting.md#hang-causes"),
    "shared_file": ("wrong result", "convert.md#step-7"),
    "wrapped_keys": ("wrong result", "recipes.md#resume"),
    "shared_gpu": ("wasted", "convert.md#step-1"),
    "slow_step": ("slow", "troubleshooting.md#slow-input"),
}


def read_words(language: str) -> dict[str, list[str]]:
    """Name -> its lines in the language's file."""
    text = pkgutil.get_data(__package__, f"words/{language}.txt").decode()
    parser = configparser.ConfigParser(delimiters="=", interpolation=None)
    parser.read_string(f"[words]\n{text}")
    return {name: value.split("\n") for name, value in parser["words"].items()}


@dataclass
class Finding:
    id: str
    severity: str
    file: str | None
    line: int | None
    seen: str
    advice: str
    page: str

    def lines(self) -> list[str]:
        at = f"  {short([self.file, self.line])}" if self.file else ""
        title = f"{self.severity.upper()}  {self.id}{at}"
        return [title, f"  {self.seen}", f"  -> {self.advice}", f"     {self.page}"]

    def annotation(self) -> str:
        """For GitHub Actions, docs.github.com: workflow commands."""
        kind = GITHUB.get(self.severity, "warning")
        place = {"title": f"doctor: {self.id}"}
        if self.file:
            place = {"file": short([self.file, None]), "line": self.line, **place}
        fields = ",".join(f"{name}={escaped(value, ':,')}" for name, value in place.items())
        return f"::{kind} {fields}::{escaped(f'{self.seen} {self.advice}')}"


def escaped(value: object, more: str = "") -> str:
    text = str(value)
    for letter in f"%\r\n{more}":
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


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
        self.mild = False  # findings are only notes, whatever FINDINGS says

    def find(self, name: str, at: list | None, /, mild: bool = False, **values: object) -> None:
        which = name.split(":")[0]
        if self.has(which):
            return
        seen, advice, *_ = [*self.words[name], *self.words[which][1:]]
        severity, page = FINDINGS.get(name, FINDINGS[which])
        if which in self.allowed:
            advice = self.say("allowed")
        if mild or self.mild or which in self.allowed:
            severity = "note"
        page = f"docs/{self.language}/{page}"
        file, line = at or (None, None)
        found = Finding(which, severity, file, line, seen.format(**values), advice, page)
        self.findings.append(found)

    def say(self, name: str) -> str:
        return self.words[name][0]

    def skip(self, which: str, why: str) -> None:
        """why: one of the words, or a text."""
        self.not_checked[which] = self.words.get(why, [why])[0]

    def has(self, *names: str) -> bool:
        return any(finding.id in names for finding in self.findings)

    def text(self) -> str:
        parts = ["\n".join(finding.lines()) + "\n" for finding in self.findings]
        parts = parts or [self.say("nothing") + "\n"]
        parts.append(f"{self.say('checked')} {', '.join(self.checked)}")
        reasons = defaultdict(list)
        for name, why in self.not_checked.items():
            reasons[why].append(name)
        for why, names in reasons.items():
            parts.append(f"{self.say('not_checked')} {', '.join(names)} ({why})")
        return "\n".join(parts)

    def json(self) -> dict:
        not_checked = [{"id": name, "why": why} for name, why in self.not_checked.items()]
        findings = [asdict(finding) for finding in self.findings]
        return {"findings": findings, "checked": self.checked, "not_checked": not_checked}

    def failed(self) -> bool:
        return any(finding.severity in SEVERITIES[:2] for finding in self.findings)


def listed(values: list) -> str:
    """Ranks, or numbers, with commas; of many the first."""
    numbers = [str(getattr(value, "rank", value)) for value in values]
    return ", ".join(numbers[:8]) + (" …" if len(numbers) > 8 else "")


def short(at: list | None) -> str:
    """file:line, from the current folder if it lies there."""
    if not at:
        return "?"
    file = at[0].removeprefix(os.getcwd() + os.sep)
    return f"{file}:{at[1]}" if at[1] else file
