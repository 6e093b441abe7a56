"""What `doctor --speed` says, where pages and results show it, written there.

    .venv/bin/python tools/benchmark/speed.py                    # speed.*.md: three minutes
    .venv/bin/python tools/benchmark/speed.py chapter-02-jpegs   # a part of speed-programs.md

The first measures docs/examples/doctor/slow.py once for each thing that makes it slow, and says it
in both languages. The second runs the part's own command in the current folder, and puts what it
said in the place of what stood there.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/assets/results/doctor"
sys.path[:0] = [str(ROOT / "doctor"), str(ROOT / "docs/examples/doctor")]
LAUNCH = "torchrun --standalone --nproc-per-node 2 docs/examples/doctor/slow.py --by"


def write_slow() -> None:
    import slow

    from ddp_doctor.command import Around, measure
    from ddp_doctor.report import LANGUAGES, Report
    from ddp_doctor.speed.said import lines_of

    os.chdir(ROOT)
    parts = {language: [] for language in LANGUAGES}
    for by in slow.BY:
        command = [*LAUNCH.split(), by]
        args = argparse.Namespace(
            command=command, against=None, without=None, speed=True, steps=0, seconds=0, still=0
        )
        speed = measure(args, Around(args), command, Report("en"))
        for language in LANGUAGES:
            option = "" if language == "en" else f" --lang {language}"
            line = f'`python doctor{option} --speed {LAUNCH} "{by}"`'
            lines, _ = lines_of(speed, Report(language))
            head = f"<!-- {by.replace(' ', '-')} -->\n{line}\n\n```text\n"
            parts[language].append(head + "\n".join(lines) + "\n```\n")
    for language, found in parts.items():
        (RESULTS / f"speed.{language}.md").write_text("\n".join(found), encoding="utf-8")


def write_program(name: str) -> None:
    """Of what stands there, the part's words before and behind what was said stay."""
    file = RESULTS / "speed-programs.md"
    head, mark, rest = file.read_text().partition(f"<!-- {name} -->\n")
    if not mark:
        sys.exit(f"error: {file.name} has no part {name}")
    part, mark_of_next, behind = rest.partition("<!-- ")
    words = shlex.split(re.search(r"`(.+)`", part)[1])
    names = [word for word in words if re.fullmatch(r"\w+=.*", word)]  # variables, before it
    words = words[len(names) :]
    words[:2] = [sys.executable, str(ROOT / "doctor"), "--lang", "en"]
    env = os.environ | dict(word.split("=", 1) for word in names)
    load, start = os.getloadavg()[0], time.monotonic()
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True)
    said = done.stdout.rpartition("\ndoctor: ")[2].partition("\n")[2].strip()
    if not said:
        sys.exit(f"error: it said nothing:\n{done.stdout[-2000:]}")
    took, after = time.monotonic() - start, os.getloadavg()[0]
    stamp = f"Exit status {done.returncode}, {date.today()}. It took {took:.0f} s; load average"
    stamp += f" {load:.2f} before, {after:.2f} after."
    part = re.sub(r"(?s)(?<=```text\n).+?(?=```)", lambda _: said + "\n", part)
    part = re.sub(r"Exit status .+? after\.", stamp, part)
    file.write_text(head + mark + part + mark_of_next + behind)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="writes what doctor --speed says")
    parser.add_argument("program", nargs="?", help="a part of speed-programs.md")
    name = parser.parse_args().program
    write_program(name) if name else write_slow()
