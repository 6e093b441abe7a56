"""Two runs that should be the same training: where do they part? (doctor --against)

Facts are compared in the order in which each hangs on those before it: weights, then for each step
samples, their contents, learning rates, gradients and the weights after it; then steps of an epoch,
what was saved and what was printed. The first difference ends the comparison of what hangs on it.
"""

import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from statistics import median

from ..before import METADATA
from ..checks.equal import apart, averages_weights
from ..findings import FACTS, compares
from ..printed import others
from ..recorder.notes import NAMELESS
from ..report import Report, listed, short
from . import inputs
from .drawn import unmatched
from .runs import (
    Run,
    Samples,
    left_files,
    name_alike,
    of_own_share,
    printed,
    read_alike,
    saved_files,
)

# Relative to the norm of a tensor. Right runs on 1 against 2 and 3 ranks, on CPUs, differed in
# their first step by less than a tenth of these. Those of tf32 and float16 were not measured:
# they go by the digits that these types have.
ROUNDING = {"float64": 1e-13, "float32": 1e-5, "tf32": 1e-2, "bfloat16": 3e-2, "float16": 1e-2}
# The same where both runs have one and the same weights in each step (--without growth). GROWTH
# times this, 0.01, is allowed: chapters 02 and 09 on one process and on two differed by 0.004 at
# most, on CPUs.
STILL = {"bfloat16": 2e-4}
GROWTH = 50  # rounding grows by less from one comparison to the next;
JUMP = 1000  # what is so many times larger is a difference
LARGE = 0.03  # of its size: no rounding is taken for granted beyond it
SMALL = 1e-3  # of all gradients together: a smaller one may be nothing but rounding
SHARE = 0.01  # of all weights: tensors that are less say nothing by themselves,
FAINT = 1e-7  # and as little of their size is what Adam's eps leaves of rounding in float64
PRINTED = 1e-3  # numbers further apart are shown; rounding may be the reason where it is coarse
UNREAD = ("saved:folder", "left", "left:unseen", "rounded")  # said, and no difference
BOTH = " | "  # between a file of A and the one of B that is compared with it
ENDS = ("resumed:without", "resumed:unknown")  # nothing can be compared
FEW = 4  # names, and pairs of printed lines


@dataclass
class Seen:
    """kind: same, differs, cause (a difference, and what makes it), undecided, skipped or note."""

    kind: str
    name: str
    text: str
    advice: str = ""
    step: int | None = None
    values: dict = field(default_factory=dict)


class Parted(Exception):
    """What comes next hangs on this difference, and is not compared."""


def singular(text: str) -> str:
    """Of one step, tensor or sample, and of a range that is one number. What a script has printed
    stands below, and stays as it is."""
    first, *below = text.split("\n", 1)
    first = re.sub(r"(?<![\d.e+-])([\d.e+-]+|inf) (?:to|到) \1(?= )", r"\1", first)
    return "\n".join([re.sub(r"(?<![\d.])1 (step|tensor|sample)s\b", r"1 \1", first), *below])


class Comparison:
    def __init__(self, one: Run, two: Run, report: Report, without: str = "") -> None:
        self.one, self.two, self.report = one, two, report
        self.without = without.split(",")
        self.runs = (one, two)
        report.fsdp = any("FSDP" in run.of_model("wrappers") for run in self.runs)
        self.batches = Samples(one), Samples(two)
        self.seen: list[Seen] = []
        self.numbers = True  # gradients and weights may still be compared
        # The first step of whose samples nothing but the index is known to be the same, and why.
        self.by_index: tuple[int, str] | None = None
        self.ordered = True  # the rows of a batch stand in the order of its indices, so far
        self.inputs = False  # without a loader: what models are given can be compared
        self.steps = 0  # whose gradients were
        self.equal: set[int] = set()  # after so many steps weights were compared, and are the same
        self.lost: set[str] = set()  # facts, for want of a probe that they need
        self.left_out: set[str] = set()  # tensors of which a rank has a part, and nobody the rest
        self.begun = self.largest = 0.0  # their difference, first and so far
        self.still = "growth" in self.without  # weights are put back after each step
        self.faint = 0.0  # the same of tensors whose gradients are nothing but rounding

    def say(self, kind: str, which: str, step: int | None = None, /, **values: object) -> None:
        values = {"step": step, "a": self.one.label, "b": self.two.label, **values}
        texts = [line.format(**values) for line in self.report.lines(f"against:{which}")[:2]]
        texts = [singular(text) for text in texts]
        self.seen.append(Seen(kind, which, *texts, step=step, values=values))
        if kind == "differs" or which in ENDS:
            raise Parted

    def parted(self) -> bool:
        return any(seen.kind == "differs" or seen.name in ENDS for seen in self.seen)

    def stop(self, kind: str, which: str, step: int | None = None, /, **values: object) -> None:
        """Nobody can compare numbers after it."""
        self.numbers = False
        self.say(kind, which, step, **values)

    def status(self) -> int:
        kinds = {seen.kind for seen in self.seen}
        return 1 if "differs" in kinds else 3 if kinds & {"undecided", "skipped"} else 0

    def json(self) -> dict:
        first = next((asdict(seen) for seen in self.seen if seen.kind == "differs"), None)
        return {"first_difference": first, "seen": [asdict(seen) for seen in self.seen]}

    def text(self) -> str:
        lines = []
        for seen in self.seen:
            lines.append(self.report.headed(f"against_{seen.kind}", seen.text))
            lines += [f"  -> {seen.advice}"] * bool(seen.advice)
        if all(seen.kind == "same" or seen.name in UNREAD for seen in self.seen):
            lines.append(self.report.say("against_nothing"))
            gone = [self.report.say(f"gone_{part}") for part in self.without if part]
            lines += [self.report.say("against_gone", parts=listed(gone))] * bool(gone)
        return "\n".join(lines)

    def compare(self) -> None:
        """A mistake in it is told, and leaves the verdict on the second run as it is."""
        try:
            self.compare_all()
        except Exception as error:
            self.say("skipped", "failed", error=repr(error))

    def compare_all(self) -> None:
        if not all(run.steps() for run in self.runs):
            self.say("skipped", "no_steps")
            return
        self.find_trouble()
        with suppress(Parted):
            self.compare_models()
            self.compare_steps()
            self.compare_epochs()
            self.compare_saved()
        with suppress(Parted):
            self.compare_printed()
        self.compare_left()
        if self.report.broken:
            self.say("skipped", "broken", self.two.steps())

    def find_trouble(self) -> None:
        """What the recorder has not seen in one run, because a probe is missing or has failed."""
        unasked = {"rows"} if all(one.known for one in self.batches) else set()
        told = set()
        for run in self.runs:
            for event in run.first.events["trouble"]:
                probe = event["probe"]
                facts = {fact for fact, needs in FACTS.items() if probe in needs} - unasked
                if facts and probe not in told:
                    told.add(probe)
                    self.lost |= facts
                    values = {"torch": run.first.process["torch"], "text": event["text"]}
                    why = self.report.say("missing" if event["missing"] else "failed", **values)
                    self.say("skipped", "trouble", probe=probe, why=why)
        self.numbers = "numbers" not in self.lost

    # ---- before the first step ----

    @compares(
        "numbers", "gradients step collectives autocast batchnorm dropout draws rounding growth"
    )
    def compare_models(self) -> None:
        name_alike(*self.runs)
        shapes = [run.sizes() for run in self.runs]
        if any(run.exchange or run.team > 1 for run in self.runs):
            self.left_out = {
                name for name in shapes[0].keys() & shapes[1].keys()
                if shapes[0][name] != shapes[1][name]
            }  # fmt: skip
        # Of ranks that share samples, those are known that have parts of the model.
        parts = self.left_out or any(run.divides() for run in self.runs)
        for why, found in (
            ("together", any(run.together or (run.team > 1 and not parts) for run in self.runs)),
            ("sharded", any(run.flat() for run in self.runs)),
            ("local", any(map(averages, self.runs))),
            ("names", not all(run.figures("weights", 0, 1) for run in self.runs)),
        ):
            if found:
                return self.stop("skipped", f"numbers:{why}")
        mine, theirs = self.figures_of("weights", 0, 1)
        if mine.keys() != theirs.keys():
            name = sorted(mine.keys() ^ theirs.keys())[0]
            self.say("differs", "parameters", name=name, mine=len(mine), theirs=len(theirs))

        least = 1e-6 if self.one.sharded or self.two.sharded else 0.0  # norms of parts are added up
        other = [name for name in mine if apart(mine[name], theirs[name]) > least]
        nameless = all(name.startswith(NAMELESS) for name in other)  # a part of one, say
        drawn = self.left_out or any(run.exchange for run in self.runs)
        if (other and (nameless or drawn)) or not mine:
            return self.stop("skipped", "numbers:names" if nameless else "numbers:together")
        if other and not self.resumed(theirs):
            self.say("differs", "start", count=len(other), all=len(mine), names=few(other))
        if self.left_out:
            names = listed(sorted(self.left_out))
            self.say("skipped", "numbers:parts", count=len(self.left_out), names=names)
        if pending := self.one.pending | self.two.pending:
            names = listed(sorted(pending))
            self.say("note", "numbers:pending", count=len(pending), names=names)
        self.equal.add(0)
        a, b = self.figures_of("fixed", 0, 1)
        fixed = [name for name in a if name in b]
        other = [name for name in fixed if least < apart(a[name], b[name])]
        values = {"count": len(mine), "fixed": len(fixed), "other": len(other), "names": few(other)}
        if other:
            self.say("differs", "start:fixed", **values)
        elif self.one.begun:
            self.compare_states(len(mine))
        else:
            self.say("same", "start:both" if fixed else "start:same", **values)
            for number in self.one.options.keys() & self.two.options.keys():
                self.compare_options(number, number)

    def resumed(self, weights: dict) -> bool:
        """Whether a run goes on from a checkpoint. If it is B, and A had these weights later on,
        steps of A are counted from there."""
        alone = [run.label for run in self.runs if run.state() or run.scheduled()]
        self.one.begun = self.one.after(weights, min(GROWTH * self.rounding(), LARGE))
        known = self.one.begun or len(alone) == 1
        of_beginning = {"shuffling", "draws", "growth"}
        of_beginning |= set() if self.one.begun else {"rounding"}
        if known and of_beginning & set(self.without):
            self.say("skipped", "resumed:without")
        elif known and not self.one.begun:
            self.say("skipped", "resumed:unknown", run=alone[0])
        return bool(known)

    def compare_states(self, count: int) -> None:
        """Of the optimizers, where B goes on from a checkpoint."""
        states = list((self.one.state() or {}) | (self.two.state() or {}))
        values = {"after": self.one.begun, "count": count, "states": few(states) or "-"}
        if found := self.other_states(1, min(GROWTH * self.rounding(), LARGE)):
            self.say("differs", "resumed:state", found=found, **values)
        else:
            self.say("same", "resumed", **values)

    def other_states(self, n: int, level: float) -> str:
        """What the optimizers of step n have kept before it, and is not the same."""
        worlds = {run.first.world for run in self.runs}
        parts = self.left_out or any(r.sharded or r.shared_out or r.team > 1 for r in self.runs)
        mine, theirs = (run.state(n) for run in self.runs)
        if mine is None or theirs is None or (parts and len(worlds) > 1):
            return ""
        pairs = {key: (mine.get(key, 0.0), theirs.get(key, 0.0)) for key in mine | theirs}
        other = [k for k, pair in pairs.items() if not math.isclose(*pair, rel_tol=level)]
        return "; ".join("{}: {:.4g} | {:.4g}".format(key, *pairs[key]) for key in other)

    def compare_options(self, *numbers: int) -> None:
        """Settings of an optimizer, for each parameter: its groups may be in another order."""
        mine, theirs = (
            {name: run.options[number][group] for name, group in run.names[number]}
            for run, number in zip(self.runs, numbers, strict=True)
        )
        for name in mine.keys() & theirs.keys():
            for key in sorted(mine[name].keys() | theirs[name].keys()):
                values = {"mine": mine[name].get(key), "theirs": theirs[name].get(key)}
                if values["mine"] != values["theirs"]:
                    self.say("differs", "options", key=key, name=name, **values)

    # ---- step by step ----

    def compare_steps(self) -> None:
        steps = min(run.steps() for run in self.runs)
        samples = self.known()
        rows = "rows" not in self.lost and all(inputs.of_step(run, 1) for run in self.runs)
        self.inputs = rows and not samples
        if samples:
            read_alike(*self.batches)
        elif not self.inputs:
            together = any(run.together for run in self.runs)
            self.say("skipped", "samples:together" if together else "samples:unknown")
        for run in self.runs:
            counts = [len(rank.steps) for rank in run.everyone]
            unequal = max(counts) - min(counts) > (0 if run.ended() else 2)
            joined = any(rank.events["join"] for rank in run.everyone)  # one that has ended waits
            if unequal and not joined and self.numbers:
                self.say("differs", "skipped", run=run.label, steps=listed(counts))
        for n in range(1, steps + 1):
            self.compare_weights(n)
            samples = samples and self.compare_samples(n)
            if samples:
                self.compare_counts(n)
            self.inputs = self.inputs and self.compare_inputs(n)
            self.compare_optimizers(n)
            self.compare_rates(n)
            self.compare_gradients(n)
        self.compare_weights(steps + 1, over=True)
        self.compare_fixed()
        if samples:
            size = self.batches[0].keys(1).total()
            name = "samples:index" if self.by_index else "samples:same"
            n, why = self.by_index or (None, "")
            self.say("same", name, n, count=steps, size=size, why=self.report.word(why))
        elif self.inputs:
            size = sum(map(len, inputs.of_step(self.one, 1)))
            self.say("same", "rows:same", count=steps, size=size)
        if names := sorted(set().union(*(run.rounded(steps) for run in self.runs))):
            self.say("note", "rounded", count=len(names), names=few(names))
        if self.steps:
            name = "numbers:same" if self.largest else "numbers:equal"
            name = "numbers:still" if self.still else name
            values = {"first": self.begun, "largest": self.largest, "count": self.steps}
            values["bound"] = self.bound()
            self.say("same", name, steps=steps, **values)

    def known(self) -> bool:
        """Whether both runs tell which samples their steps have."""
        return all(one.known for one in self.batches) and "samples" not in self.lost

    @compares("samples", "pass batch indices items stream worker backward shuffling")
    def compare_samples(self, n: int) -> bool:
        """Of all ranks together. Returns whether those of the next step can be compared."""
        a, b = (one.keys(n) for one in self.batches)
        if a == b:
            mine, theirs = (one.contents(n) for one in self.batches)
            shapes = {shape for *_, shape in mine + theirs}
            why = "unlike" if len(shapes) > 1 else "no_tensors" if "[]" in shapes else ""
            why = why if mine and theirs else "unseen_batch"
            self.by_index = self.by_index or ((n, why) if why else None)
            return not (mine and theirs) or self.compare_contents(n, mine, theirs)

        values = {"mine": a.total(), "theirs": b.total(), "common": (a & b).total()}
        if n == 1 and (earlier := self.batches[0].earlier(b)):
            after = self.one.begun + 1
            self.say("differs", "samples:resumed", n, earlier=earlier, after=after, **values)
        again = [one.repeats(n) for one in self.batches]
        most = self.batches[1].padding(n)
        twice = [sum(count - 1 for count in rows.values()) for rows in (a, b)]
        if n == 1 and a.total() and b.total() and a.total() != b.total():
            # All have the samples of A: nobody shares them out, or by what no loader tells.
            each = self.batches[1].of_ranks(n)
            which = "batch:same" if all(keys == a for keys in each) else "batch"
            self.say("differs", which, n, factor=f"{b.total() / a.total():.3g}", **values)
        elif n == 1 and twice[1] > twice[0]:
            self.say("differs", "twice", n, twice=twice[1], **values)
        elif "shuffling" in self.without and (own := self.batches[1].of_own_order(n)):
            values |= {"sampler": own["drawing"], "at": short(own["at"])}
            self.stop("skipped", "order:own", n, **values)
        elif "shuffling" not in self.without and n == 1 and any(s.shuffles for s in self.batches):
            self.stop("skipped", "order", n, **values)
        elif again[0] < again[1] and a.total() <= b.total():
            mine, theirs = (sum(p.planned() for p in one.of_step(n)) for one in self.batches)
            if again[1] <= again[0] + most:
                self.stop("cause", "padding", n, repeats=again[1])
            elif theirs >= 2 * mine > 0:
                self.stop("differs", "longer", n, mine=mine, theirs=theirs)
            else:
                self.stop("skipped", "again", n, repeats=again[1], most=most)
        else:
            self.say("differs", "samples", n, **values)
        return False

    @compares("rows", "gradients step forward optimizer_made")
    def compare_inputs(self, n: int) -> bool:
        """As compare_samples, where no loader tells what they are."""
        found = inputs.difference(*self.runs, n, self.without)
        if found:
            kind, name, values = found
            self.numbers = self.numbers and kind == "differs"
            self.say(kind, name, n, **values)
        self.ordered &= bool(found) or inputs.same_turns(*self.runs, n)
        return not found

    def compare_contents(self, n: int, mine: list, theirs: list) -> bool:
        # A collate_fn may sort the rows of a batch: who they are is then not known.
        rows = [sorted(rest for _, *rest in rows) for rows in (mine, theirs)]
        if all(map(same_item, *rows)):
            keyed = [sorted(rows) for rows in (mine, theirs)]
            self.ordered &= self.batches[0].in_turn(n) == self.batches[1].in_turn(n)
            self.ordered &= all(same_item(a[1:], b[1:]) for a, b in zip(*keyed, strict=True))
            return True
        names = [Counter(target for _, target, *_ in rows) for rows in (mine, theirs)]
        shapes = {shape for *_, shape in mine + theirs}
        for key in dict.fromkeys(key for key, *_ in mine):
            # Two ranks, or two loaders, may have an index each for samples of their own.
            pairs = [sorted(rest for k, *rest in rows if k == key) for rows in (mine, theirs)]
            other = [(a, b) for a, b in zip(*pairs, strict=True) if not same_item(a, b)]
            if not other:
                continue
            (target, item, _), (target2, item2, _) = other[0]
            values = {"key": key, "mine": target, "theirs": target2}
            if target != target2 and (item == item2 or names[0] != names[1]):
                self.say("differs", "targets", n, **values)
            elif len(shapes) > 1:
                self.ordered = False
                return True  # each is padded to the longest of its batch
            elif by := sorted(set.union(*(one.drawn for one in self.batches))):
                beside = not {*by} - {"random", "numpy"}  # what seeds torch alone changes nothing
                self.stop("skipped", f"views{':beside' * beside}", n, by=listed(by), **values)
            else:
                self.say("differs", "contents", n, **values)
            return False
        return True

    @compares("counts", "divisors backward draws")
    def compare_counts(self, n: int) -> None:
        """Of the same samples. Which targets count may hang on what the model says, so it must be
        the same model."""
        a, b = (run.targets(n) for run in self.runs)
        each = len(self.two.ranks) / len(self.one.ranks)  # where each has gathered all
        same = b in (a, a * each)
        if not same and any(run.team > 1 or run.given for run in self.runs):
            a, b = (run.targets(n, run.everyone) for run in self.runs)  # each counts its part
        if a and b and not same and a != b and (self.numbers or n == 1):
            found = unmatched(self.runs, 0, n - 1, self.ordered, layers=False)
            if not (found or any(one.drawn for one in self.batches)):
                self.say("differs", "counts", n, mine=a, theirs=b)

    def compare_optimizers(self, n: int) -> None:
        """Which one makes step n, and what it has kept before it."""
        numbers = [run.optimizer(n) for run in self.runs]
        if numbers[0] != numbers[1]:
            # A run may go on with another model and optimizer, filled from what it has saved.
            mine, theirs = ({name for name, _ in run.named(n)} for run in self.runs)
            if not mine or mine != theirs or (self.numbers and n - 1 not in self.equal):
                self.say("differs", "optimizers", n)
            self.compare_options(*numbers)
        if self.numbers and not (n == 1 and self.one.begun):
            if found := self.other_states(n, LARGE):
                self.say("differs", f"state{':first' * (n == 1)}", n, found=found)

    def compare_rates(self, n: int) -> None:
        mine, theirs = (
            {name: step["rates"][group] for name, group in run.named(n)}
            if len(step["rates"]) == len(run.options.get(step["optimizer"], ()))
            else dict(enumerate(step["rates"]))
            for run, step in ((run, run.step(n)) for run in self.runs)
        )
        for name in mine.keys() & theirs.keys():
            if not math.isclose(mine[name], theirs[name], rel_tol=1e-6, abs_tol=1e-12):
                which = "rates:resumed" if self.one.begun else "rates"
                self.say("differs", which, n, mine=mine[name], theirs=theirs[name])

    def figures_of(self, what: str, n: int, step: int) -> list[dict]:
        both = [run.figures(what, n, step) for run in self.runs]
        out = self.left_out
        if what in ("gradients", "unclipped"):
            out = out.union(*(run.pending for run in self.runs))
        return [{k: v for k, v in rows.items() if k not in out} for rows in both]

    def figures(self, what: str, n: int, step: int) -> list[dict]:
        found = self.figures_of(what, n, step) if self.numbers else []
        alike = found and found[0] and found[0].keys() == found[1].keys()
        return found if alike or what == "fixed" else []

    def compare_weights(self, n: int, over: bool = False) -> None:
        """Before step n, where all that came before was equal. over: there is none; what one run
        prints first may come from other weights then, an average that is put in their place."""
        if n > 1 and (found := self.figures("weights", n - 1, n)):
            parts = {name: apart(row, found[1][name]) for name, row in found[0].items()}
            other = self.beyond(parts)
            norms = {name: norm for name, (norm, _) in found[0].items()}
            every = math.hypot(*norms.values())
            if not (other or math.isfinite(every)):
                return self.stop("skipped", "numbers:nan", n - 1)
            share = math.hypot(*(norms[name] for name in other)) / (every or 1)
            if other and over:
                return
            faint = max((parts[name] for name in other), default=0.0)
            if share < SHARE and faint < FAINT:
                self.faint = max(self.faint, faint)
                parts = {name: part for name, part in parts.items() if name not in other}
                other = []
            if other and share < SHARE:
                # Adam makes whole steps of a gradient that is nothing but rounding.
                which = "small:still" if "rounding" in self.without else "small"
                self.stop("undecided", which, n - 1, count=len(other), names=few(other))
            else:
                self.judge("weights", n - 1, parts)
            if self.numbers:
                self.equal.add(n - 1)

    def compare_fixed(self) -> None:
        """What no optimizer changes, at its latest."""
        known = [run.first.figures["fixed"] for run in self.runs]
        both = [
            {n - run.begun for n in found} & self.equal
            for run, found in zip(self.runs, known, strict=True)
        ]
        last = max(set.intersection(*both), default=0)
        a, b = self.figures("fixed", last, 1) if last else ({}, {})
        parts = {name: apart(row, b[name]) for name, row in a.items() if name in b}
        if other := self.beyond(parts):
            values = {"size": max(parts.values()), "names": few(other), "count": len(other)}
            self.say("differs", "fixed", last, all=len(parts), **values)

    def compare_gradients(self, n: int) -> None:
        compared = False
        first = "gradients" if any(run.clips_own(n) for run in self.runs) else "unclipped"
        for what, figures in (("gradients", first), ("clipped", "gradients")):
            if found := self.figures(figures, n, n):
                a, b = found
                least = SMALL * math.hypot(*(norm for rows in found for norm, _ in rows.values()))
                parts = {name: apart(a[name], b[name], least) for name in a}
                own = SMALL * math.hypot(*(norm for norm, _ in a.values()))
                ratios = {name: b[name][0] / a[name][0] for name in a if a[name][0] > own}
                self.judge(what, n, parts, ratios or {"": math.inf})
                compared = True
        self.steps += compared and self.numbers

    def judge(self, what: str, n: int, parts: dict, ratios: dict | None = None) -> None:
        """parts: name of a tensor -> how far it is from that of the other run."""
        size = max(parts.values(), default=0.0)
        if size <= self.bound():
            self.begun = self.begun or size
            self.largest = max(self.largest, size)
            return

        level, names = self.level(), self.beyond(parts)
        own = [ratio for name, ratio in (ratios or {}).items() if name in names]
        ratios = list((ratios or {"": 1.0}).values())
        factor = median(ratios)
        values = {"size": size, "level": level, "names": few(names), "count": len(names)}
        values |= {"all": len(parts), "low": min(ratios), "high": max(ratios), "factor": factor}
        most = 0.5 if 0.7 < factor < 1.4 else 0.999
        alike = max(ratios) - min(ratios) < max(1e-3, 10 * level) * factor
        alike = alike and what != "clipped"  # by the limit then, and by nothing else
        if what != "clipped" and not (self.inputs or self.known()):
            return self.stop("skipped", f"unknown:{what}", n, **values)
        causes = self.causes(n) if what == "gradients" and 0.7 < factor < 1.4 else []
        worlds = self.two.first.world / self.one.first.world
        team = self.two.team / self.one.team
        if what == "gradients" and team != 1 and own and times(own, team):
            self.say("differs", "gradients:team", n, **{**values, "factor": own[0]})
        elif causes:
            for name, more in causes:
                kind = "differs" if name == "dropout:alone" else "cause"
                self.stop(kind, name, n, **values, **more)
        elif what == "gradients" and worlds != 1 and gathered(ratios, 1 / worlds):
            self.say("differs", "gradients:gathered", n, **values)
        elif alike and worlds != 1 and math.isclose(factor, worlds, rel_tol=1e-2):
            self.say("differs", "gradients:processes", n, **values)
        elif alike and worlds != 1 and math.isclose(factor, 1 / worlds, rel_tol=1e-2):
            self.say("differs", "gradients:inverse", n, **values)
        elif alike and abs(factor - 1) > max(1e-3, 10 * level):
            self.say("differs", "gradients:factor", n, **values)
        elif size <= GROWTH * level or (size <= JUMP * level and size < LARGE):
            self.stop("undecided", "undecided", n, **values)
        elif what == "gradients" and all(f"{ratio:.4g}" == "1" for ratio in ratios):
            self.say("differs", "gradients:turned", n, **values)
        elif what == "gradients" and n == 1 != worlds and len(names) > len(parts) * most:
            self.say("differs", "gradients:loss", n, **values)  # it may be the loss that differs
        else:
            self.say("differs", self.restarted(n) if what == "weights" else what, n, **values)

    def restarted(self, n: int) -> str:
        """Which words fit weights after step n that are others: did one run go on with what it had
        loaded after it?"""
        places = [
            {event["place"] - run.begun for event in run.first.events["restored"]}
            for run in self.runs
        ]
        return "weights:loaded" if n in set.symmetric_difference(*places) else "weights"

    def beyond(self, parts: dict[str, float]) -> list[str]:
        return [name for name, part in parts.items() if part > self.bound()]

    def bound(self, level: float = 0.0) -> float:
        """What is further apart, relative to its size, is no rounding."""
        return min(GROWTH * max(self.level(), level), LARGE)

    def level(self) -> float:
        """What rounding has done so far."""
        return self.rounding() if self.still else max(self.rounding(), self.largest)

    def rounding(self) -> float:
        types = {name for run in self.runs for name in run.of_model("types")}
        types |= {event["type"] for run in self.runs for event in run.first.events["autocast"]}
        known = ROUNDING | (STILL if self.still else {})
        return max((known.get(name, 3e-2) for name in types), default=ROUNDING["float32"])

    def causes(self, n: int) -> list[tuple[str, dict]]:
        """What makes gradients of right runs differ, so far as facts show it."""
        found = []
        norms = max((run.of_model("norms") for run in self.runs), key=len)
        drops = max((run.of_model("drops") for run in self.runs), key=len)
        if norms:
            found.append(("batchnorm", {"norms": few(norms), "number": len(norms)}))
        call = unmatched(self.runs, 0, n - 1, self.ordered)
        if self.one.begun and (drops or call):
            found.append(("resumed:random", {"call": few(drops) or call}))
        elif drops and (alone := self.drops_alone()):
            found.append(("dropout:alone", {"drops": few(drops), "run": alone}))
        elif drops:
            found.append(("dropout", {"drops": few(drops), "number": len(drops)}))
        elif call:
            found.append(("drawn:still" if "draws" in self.without else "drawn", {"call": call}))
        shares = [one.shares(n) for one in self.batches]
        uneven = [share for share in shares if len(set(share)) > 1]
        if uneven:
            found.append(("parts", {"shares": listed(uneven[0])}))
        return found

    def drops_alone(self) -> str:
        """Which run has dropout, if the other one, whose layers were seen, has none: no right twin
        does so."""
        layers = [[e for rank in run.everyone for e in rank.events["layers"]] for run in self.runs]
        known = [run.label for run, found in zip(self.runs, layers, strict=True)
                 if any(event["drops"] for event in found)]  # fmt: skip
        return known[0] if all(layers) and len(known) == 1 else ""

    # ---- epochs, files, printed lines ----

    def compare_epochs(self) -> None:
        # Of samples that are known, all steps had the same.
        counts = [[] if self.known() or self.one.begun else run.epochs() for run in self.runs]
        for n, (mine, theirs) in enumerate(zip(*counts, strict=False), 1):
            if mine != theirs:
                self.say("differs", "epochs", epoch=n, mine=mine, theirs=theirs)
        mine, theirs = (run.steps() for run in self.runs)
        if mine != theirs and all(run.ended() for run in self.runs):
            epochs = [len(run.epochs()) for run in self.runs]
            which = "steps:shorter" if epochs[0] == epochs[1] > 0 else "steps"
            self.say("differs", which, mine=mine, theirs=theirs, count=epochs[0])

    @compares("saved", "checkpoint files safetensors")
    def compare_saved(self) -> None:
        mine, theirs = map(saved_files, self.runs)
        both = self.pairs(mine, theirs)
        self.compare_names(mine, theirs, {part for file, *_ in both for part in file.split(BOTH)})
        for file, step, one, other in both:
            a, b = one["tensors"], other["tensors"]
            if a.keys() != b.keys():
                self.say("differs", "saved:names", file=file, name=sorted(a.keys() ^ b.keys())[0])
            if unlike := [name for name in a if a[name][2] != b[name][2]]:
                shapes = {"mine": a[unlike[0]][2], "theirs": b[unlike[0]][2]}
                parts = one["parts"] or other["parts"]
                parts = parts or of_ranks(file, mine.keys() ^ theirs.keys())
                kind = "skipped" if parts else "differs"
                self.say(kind, "saved:shapes", step, file=file, name=unlike[0], **shapes)
                return
            least = Counter()  # of the tensors of one part, such as the optimizer
            for name, (norm, *_) in a.items():
                least[name.split(".")[0]] += SMALL * norm
            parts = {
                name: apart(row[:2], b[name][:2], least[name.split(".")[0]])
                for name, row in a.items()
            }
            size = max(parts.values(), default=0.0)
            if self.numbers and size > self.bound(self.faint):
                kind, which = ("differs", "saved")
                if step not in self.equal or self.still:  # the optimizer's state may grow apart
                    kind, which = ("undecided", "saved:alone")
                name = max(parts, key=parts.get)
                self.say(kind, which, step, file=file, name=name, size=size)
                return
        if folders := {file: len(one["tensors"]) for file, _, one, _ in both if BOTH in file}:
            files = [f"{file}: {count}" for file, count in folders.items()]
            self.say("note", "saved:folder", files=listed(files))
        files = sorted({file for file, _, one, _ in both if one["tensors"]})
        if files and self.numbers:
            self.say("same", "saved:same", files=listed(files))
        self.compare_numbers(both)

    def pairs(self, mine: dict, theirs: dict) -> list[tuple]:
        """What both have saved after a step: under one name; or one of them in a file, and the
        other one in a folder of torch.distributed.checkpoint."""
        both = [(*key, mine[key], theirs[key]) for key in sorted(mine.keys() & theirs.keys())]
        alone = mine.keys() ^ theirs.keys()
        for step in sorted({step for _, step in alone}):
            keys = [[key for key in alone if key in found and key[1] == step]
                    for found in (mine, theirs)]  # fmt: skip
            if [len(found) for found in keys] != [1, 1]:
                continue
            [[one], [other]] = keys
            a, b = mine[one], theirs[other]
            names = a["tensors"].keys() & b["tensors"].keys()
            if names and a["path"].endswith(METADATA) != b["path"].endswith(METADATA):
                a, b = ({**e, "tensors": {n: e["tensors"][n] for n in names}} for e in (a, b))
                both.append((one[0] + BOTH + other[0], step, a, b))
        return both

    def compare_left(self) -> None:
        """Files that are not the same, byte by byte, and of which nothing was compared. Another job
        may write there, too: what no process of a run was seen to open is said."""
        every = [{one["name"]: one for one in left_files(run)} for run in self.runs]
        mine, theirs = (
            {name: one for name, one in files.items() if not one["tensors"]} for files in every
        )
        alike = [
            name for name, one in mine.items() if (other := theirs.get(name))
            and (one["digest"] == other["digest"] or (one["numbers"] and other["numbers"]))
        ]  # fmt: skip
        rest = [
            one for found in (mine, theirs) for one in found.values() if one["name"] not in alike
        ]
        least = sum(self.two.of_model("sizes")) / 2  # bytes, of all ranks together
        unread = [one for one in rest if not (one["text"] or one["read"])]
        large = {one["name"] for one in unread if one["bytes"] > least}
        if large:
            self.say("skipped", "left:unread", files=listed(sorted(large)))
        if small := {one["name"] for one in rest} - large:
            self.say("note", "left", files=listed(sorted(small)))
        told = {seen.values.get("file") for seen in self.seen if seen.kind != "same"}
        told |= {one["name"] for one in rest} | (every[0].keys() ^ every[1].keys())
        strange = [
            name for name in told if {f[name]["seen"] for f in every if name in f} == {False}
        ]
        if strange:
            self.say("note", "left:unseen", files=listed(sorted(strange)))

    def compare_names(self, mine: dict, theirs: dict, known: set) -> None:
        """Files with tensors that one run alone has saved, up to the last step that both have
        made."""
        last = min(run.steps() for run in self.runs) - (not all(run.ended() for run in self.runs))
        alone = []
        for run, found in zip(self.runs, (mine, theirs), strict=True):
            late = 0 if run.begun else -1  # else by then the checkpoint, and those before it
            names = {k for (k, step), e in found.items() if late < step <= last and e["tensors"]}
            names = sorted(names - known)
            alone += [f"{run.label}: {listed(names)}"] * bool(names)
        if alone:
            self.say("skipped", "saved:unpaired", files="; ".join(alone))

    def compare_numbers(self, both: list) -> None:
        """Numbers beside the tensors: an epoch, a best score; but also a rank, or a time."""
        count, rows = 0, []
        for file, step, *events in both:
            a, b = (event["numbers"] for event in events)
            for name in (name for name in a if name in b):
                count += 1
                if not math.isclose(a[name], b[name], rel_tol=self.tolerance(), abs_tol=1e-12):
                    rows.append(f"\n    {file}, step {step}: {name}: {a[name]:.6g} | {b[name]:.6g}")
        if rows:
            self.say("note", "saved:numbers", count=len(rows), all=count, rows="".join(rows[:FEW]))

    def tolerance(self) -> float:
        """Of numbers that are made of the weights: a score, say."""
        return min(10 * GROWTH * max(self.rounding() / 100, self.largest), PRINTED)

    @compares("printed", "printed collectives")
    def compare_printed(self) -> None:
        """Lines with the same words and other numbers."""
        mine, theirs = (printed(run, self.one.begun > 0) for run in self.runs)
        both = [
            pair
            for words in mine
            if words in theirs  # as they came
            for pair in zip(mine[words], theirs[words], strict=False)
        ]
        found = [row for row in both if self.others(*row)]
        strange = [row for row in found if not self.of_own_share(self.others(*row), *row)]
        # What two runs say of equal weights.
        sure = [row for row in strange if row[0]["after"] == row[1]["after"]]
        sure = [row for row in sure if row[0]["after"] in self.equal]
        if not found:
            if both:
                self.say("same", "printed:same", count=len(both))
            return
        unsure = self.tolerance() == PRINTED or (strange and not sure)
        if self.parted() or not self.numbers or unsure:
            self.say_lines("note", "printed:known", strange or found, both)
        elif not strange:
            self.say_lines("cause", "printed:share", found, both)
        else:
            sizes = self.unlike_batches(sure[0][0])
            which = "printed:first" if sizes else "printed"
            self.say_lines("differs", which, sure, both, sizes=listed(sizes))

    def unlike_batches(self, line: dict) -> list[int]:
        """How many samples the batches have of the evaluation that A, one process, has printed this
        line of, if they are unlike: the mean of their means is not that of all samples. Only where
        the verdict on B has seen that it adds up its samples."""
        report, rank = self.report, self.one.first
        sure = "wrong_evaluation" in report.checked and not report.has("wrong_evaluation")
        latest = rank.latest(line["row"])
        if not sure or rank.world > 1 or not latest or latest.steps:
            return []
        sizes = {len(latest.keys_of(batch)) for batch in latest.batches}
        return sorted(sizes, reverse=True) if len(sizes) > 1 else []

    def others(self, mine: dict, theirs: dict) -> list:
        return others(mine["text"], theirs["text"], self.tolerance())

    def say_lines(self, kind: str, which: str, lines: list, both: list, **values: object) -> None:
        rows = [
            f"\n    {run.label}  {line['shown']}"
            for pair in lines[:FEW]
            for run, line in zip(self.runs, pair, strict=True)
        ]
        self.say(kind, which, rows="".join(rows), count=len(lines), all=len(both), **values)

    def of_own_share(self, found: list, *lines: dict) -> bool:
        """Whether in one run rank 0 has computed these numbers of its own samples alone."""
        texts = [[(before, one[n]) for before, *one in found] for n in (0, 1)]
        each = zip(self.runs, lines, texts, strict=True)
        return any(of_own_share(run, *more) for run, *more in each if run.first.world > 1)


def averages(run: Run) -> bool:
    return bool(run.of_model("sizes")) and averages_weights(run.everyone)


def same_item(mine: list, theirs: list) -> bool:
    """Targets and items of a sample; NaN is equal to itself here."""
    same = repr(mine[1]) == repr(theirs[1]) or math.isclose(
        mine[1], theirs[1], rel_tol=1e-5, abs_tol=1e-5
    )
    return same and mine[0] == theirs[0]


def of_ranks(file: str, alone: set[tuple]) -> bool:
    """Whether one run alone has another file whose name differs in its number: a rank's part."""
    names = {re.sub(r"\d+", "#", name) for name, _ in alone if name != file}
    return re.sub(r"\d+", "#", file) in names


def gathered(ratios: list[float], part: float) -> bool:
    """Whether nearly all tensors have this part of their gradient and the others, such as a factor
    of the loss, all of it."""
    rest = [ratio for ratio in ratios if not math.isclose(ratio, part, rel_tol=1e-2)]
    few = 0 < len(rest) <= max(1, 0.2 * len(ratios)) < len(ratios) - 1
    return few and all(math.isclose(ratio, 1, rel_tol=1e-2) for ratio in rest)


def times(ratios: list[float], team: float) -> bool:
    """Whether all are this number, or all are one divided by it."""
    return any(
        all(math.isclose(ratio, factor, rel_tol=1e-2) for ratio in ratios)
        for factor in (team, 1 / team)
    )


def few(names: list) -> str:
    return ", ".join(names[:FEW]) + (" …" if len(names) > FEW else "")
