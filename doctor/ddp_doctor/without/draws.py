"""--without draws: the numbers that a step draws belong to its samples, on any number of ranks.

From one batch to the next (in scripts without a loader: from one backward pass to the next) torch,
numpy and random draw from a stream of the doctor's, which hangs on the number of steps made alone.
Where the first dimension of a draw is the batch, each row has a seed of its own: of the draw, and
of its sample. What loaders and data sets draw comes from the script's own stream, as ever.

A draw of torch is known by the generator's seed, which is another one after it. Activation
checkpointing puts the generator back, so its recomputation gets the same numbers again.

Where draws are not taken out, the mode changes nothing: it notes which calls draw.
"""

import contextlib
import functools
import hashlib
import os
import random
import re
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode

from ..recorder.collectives import TORCH, tensors_in
from ..recorder.figures import capturing
from ..recorder.hooks import hook
from ..recorder.loaders import data
from ..recorder.notes import HERE, compares, notes, place, without
from ..recorder.states import plain, state_of
from ..recorder.training import training
from . import first

# Of these, each row can be drawn by itself.
ROWS = "rand randn randint normal rand_like randn_like randint_like bernoulli multinomial poisson"
ROWS += " binomial _standard_gamma _sample_dirichlet gumbel_softmax normal_ uniform_ bernoulli_"
ROWS = {*ROWS.split(), "exponential_", "random_", "log_normal_", "cauchy_", "geometric_"}
MAY_DRAW = "rand|normal(?!iz)|bernoulli|multinomial|poisson|binomial|exponential|geometric|cauchy"
MAY_DRAW += "|uniform|gamma|dirichlet|gumbel|dropout|rrelu|fractional|attention|lstm|gru|rnn"
INNER = re.escape(TORCH) + "|" + re.escape(HERE) + "|<|.*torchinductor"  # files of no caller
MOST_ROWS = 1 << 16  # a draw of more is made as a whole: a row takes some 20 microseconds
MOST_CALLS = 500  # of a batch
OURS = 0xD0C << 48  # begins each seed of a stream of ours


class Draws(TorchFunctionMode):
    of_doctor = True

    def __init__(self) -> None:
        super().__init__()
        self.on = False  # not before there is an optimizer, and not while a loader is asked
        self.optimizes = False
        self.asked = False  # a loader, which may ask another one
        self.own = {}  # puts the script's stream back, while it draws from ours
        self.seeded = set()  # by the script, meanwhile
        self.streams = {}  # a loader -> its number, in the order of their first batches
        self.step, self.stream, self.part = -1, -1, 0
        self.passing = None  # the latest pass
        self.first = defaultdict(list)  # step and stream -> what the first of two runs drew there
        for event in first().get("draws", []):
            self.first[event["n"], event["stream"]].append(event)

    def begin(self, stream: int = -1) -> None:
        """What is drawn from now on is for this batch. stream: -1 is of no loader."""
        if (self.step, self.stream) == (training.steps, stream):
            self.part += 1
        else:
            self.step, self.stream, self.part = training.steps, stream, 0
            self.rows = Counter()  # of each draw, in the parts of the step so far
        self.calls = {}  # what a draw is known by -> what is noted of it, and whose its rows are
        self.changes = without("draws")
        if self.changes:
            if not self.own:
                self.own, self.seeded = kept(), set()
            seed_all(mix(self.step))
        self.begun = states()
        self.seen = {position()}  # of torch's generator, after each draw
        self.on = True

    def close(self) -> None:
        self.on = False
        self.look()
        if not is_ours(torch.initial_seed()):
            self.seeded.add("torch")
        calls = [noted for noted, _ in self.calls.values()]
        for name, *two in zip(("random", "numpy.random"), self.begun, states(), strict=True):
            if two[0] != two[1]:
                calls.append([name, None, [], 0, digest(two)])
        if calls:
            who, count = self.batch()
            number = self.passing.n if self.stream >= 0 else None
            batch = {"stream": self.stream, "part": self.part, "pass": number, "who": who}
            notes.event("drawn", n=self.step, count=count, world=place()[1], calls=calls, **batch)

    def look(self) -> None:
        """Has anything drawn that was not seen, such as code in C++?"""
        now = position()
        if now not in self.seen:
            self.seen.add(now)
            seeded = torch.Generator().manual_seed(torch.initial_seed())  # by the script
            if now[0] != state_of(seeded) or any(now[2:]):
                self.calls.setdefault("", (["torch (C++)", None, [], -1, ""], []))

    # ---- what begins and ends a batch ----

    def ask(self) -> bool:
        """A loader is asked for something. Returns whether tell() is to be called after it."""
        main = threading.current_thread() is threading.main_thread()
        if self.asked or not main or not compares():
            return False
        if self.on:
            self.close()
        for name, put_back in self.own.items():
            if name not in self.seeded:
                put_back()
        self.own = {}
        self.asked = True
        return True

    def tell(self, one: object = None, batch: object = None) -> None:
        """one: the pass that has given this batch, or had none any more."""
        self.asked = False
        if not self.optimizes:
            return
        if one is None or (batch is None and not (one is self.passing and self.ahead)):
            self.begin()
            return
        if one is not self.passing:
            self.passing, self.batches, self.ahead = one, [], None
        sizes = [len(tensor) for tensor in tensors_in(batch) if tensor.dim()]
        sizes = [len(one.latest)] if one.latest else sizes
        self.batches = [*self.batches[-2:], (one.latest, (sizes or [0])[0])]
        self.begin(self.streams.setdefault(one.loader, len(self.streams)))

    def batch(self) -> tuple[list | None, int]:
        """Indices of its samples, if they are known, and how many it has."""
        if self.stream < 0:
            return None, 0
        if self.ahead is None:  # accelerate's loaders, say, fetch the next one before they give one
            self.ahead = len(self.batches) == 2
        return self.batches[-1 - self.ahead]

    def again(self, *_: object, **__: object) -> None:
        """After a step or a backward pass: no loader says where the next batch begins."""
        if self.on and self.stream < 0:
            self.close()
            self.begin()

    # ---- a draw ----

    def __torch_function__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or not self.on:
            return func(*args, **kwargs)
        if not may_draw(getattr(func, "__name__", "")) or capturing():
            return func(*args, **kwargs)

        generator = kwargs.get("generator")
        if generator is torch.default_generator:
            generator = None
        if self.changes and generator is None:
            return self.drawn_alike(func, args, kwargs)
        self.look()
        before = position(generator)
        result = func(*args, **kwargs)
        if position(generator) != before:
            self.note(before, func, result, digest(before))
            self.seen.add(position())
        return result

    def drawn_alike(self, func: Callable, args: tuple, kwargs: dict) -> object:
        self.look()
        key = torch.initial_seed()
        if not (self.calls or is_ours(key)):  # the script has seeded it for this step
            key = mix(self.step)
        torch.manual_seed(mix(key))  # of all devices
        before = position()
        result = func(*args, **kwargs)
        if func.__name__ not in ROWS and position() == before:
            torch.default_generator.manual_seed(key)  # it draws in training alone, say
            return result

        if key not in self.calls:  # else it is computed once more
            try:
                per, whose = self.whose(func, args, result)
            except Exception:
                per, whose = -1, []
            self.note(key, func, result, "" if is_ours(key) else str(key), per, whose)
        noted, whose = self.calls.get(key, (None, []))
        if whose:
            try:
                result = by_rows(func, args, kwargs, result, [mix(key, *who) for who in whose])
            except Exception:  # a tensor that has no rows of its own, say
                noted[3] = -1
        torch.default_generator.manual_seed(mix(key, "next"))
        self.seen.add(position())
        return result

    def note(
        self,
        key: object,
        func: Callable,
        result: object,
        source: str,
        per: int = 0,
        whose: list = (),
    ) -> None:
        """per: rows of a sample, 0: it is drawn as a whole, -1: nobody can tell how."""
        name = func.__name__
        shape = [list(tensor.shape) for tensor in tensors_in(result)][:1]
        if len(self.calls) <= MOST_CALLS:
            per = -1 if "." in name or len(self.calls) == MOST_CALLS else per
            self.calls[key] = [name, caller(), *(shape or [[]]), per, source], whose

    def whose(self, func: Callable, args: tuple, result: object) -> tuple[int, list]:
        """How many rows a sample has; and for each row its sample, and which of its rows it is.

        0: it is drawn as a whole, alike on all ranks.
        """
        name = func.__name__
        whole = name not in ROWS or type(result) not in (torch.Tensor, torch.nn.Parameter)
        if whole or not result.dim() or not 0 < len(result) <= MOST_ROWS:
            return 0, []
        if name == "multinomial" and args and args[0].dim() == 1:
            return 0, []  # draws of one distribution
        size, number = len(result), len(self.calls)
        before, self.rows[number] = self.rows[number], self.rows[number] + size
        rank, world = place()
        parts = self.first[self.step, self.stream]
        event = next((one for one in parts if one["part"] == self.part), (parts or [None])[-1])
        noted = event["calls"][number] if event and number < len(event["calls"]) else None

        who, count = self.batch()
        if count:
            per = size // count if size % count == 0 else 0
            who = who or [rank + world * (before // (per or 1) + n) for n in range(count)]
            if noted and noted[3] != per:
                if noted[3] < 1 or noted[2][0] != size or not event["count"]:
                    return 0, []
                # No batch, but as many rows in both runs: the first took them for its batch.
                per, who = 0, event["who"] or range(event["count"])
            return per, [(one, n) for one in who for n in range(size // len(who))]

        if noted and noted[3] < 1:
            return 0, []
        if noted and noted[2][0] == size and world != event["world"] and not repeated(parts):
            return 0, [(n, 0) for n in range(size)]  # a fixed number of rows
        if noted and sum_of(parts, number) * event["world"] % (size * world):
            return 0, []
        return 1, [(rank + world * (before + n), 0) for n in range(size)]


def repeated(parts: list[dict]) -> bool:
    """Whether a step without a loader draws the same again and again: it accumulates gradients."""
    calls = [[call[:3:2] for call in part["calls"]] for part in parts]
    return len(calls) > 1 and all(one == calls[0] for one in calls)


def sum_of(parts: list[dict], number: int) -> int:
    """Rows of a draw in a whole step."""
    shapes = [part["calls"][number][2] for part in parts if number < len(part["calls"])]
    return sum(shape[0] for shape in shapes if shape)


def by_rows(func: Callable, args: tuple, kwargs: dict, result: object, seeds: list) -> object:
    """The result, each row drawn on a CPU by a seed of its own."""
    shape = tuple(result.shape)
    changed = func.__name__.endswith("_")  # in place
    blank = torch.empty_like(result, device="cpu") if changed else None
    if func in (torch.rand, torch.randn):
        args, kwargs = (shape,), {k: v for k, v in kwargs.items() if k != "size"}
    given = {k: v for k, v in kwargs.items() if k not in ("out", "requires_grad", "pin_memory")}
    if not tensors_in((*args, *kwargs.values())):
        given["device"] = "cpu"

    def part(value: object, n: int) -> object:
        if isinstance(value, torch.Tensor):
            value = blank if value is result else value.cpu()
            rows = value.dim() == len(shape) and len(value) == len(seeds)
            return value[n : n + 1] if rows else value
        sizes = isinstance(value, list | tuple) and tuple(value) == shape
        return (1, *shape[1:]) if sizes else value

    rows = []
    for n, seed in enumerate(seeds):
        torch.default_generator.manual_seed(seed)
        one = func(*(part(v, n) for v in args), **{k: part(v, n) for k, v in given.items()})
        rows.append(one)
    rows = torch.cat(rows).to(result.device)
    if result.grad_fn is not None and not changed:
        return rows
    with torch.no_grad():
        return result.copy_(rows)


def mix(*parts: object) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=6).digest()
    return OURS | int.from_bytes(digest, "big")


def is_ours(seed: int) -> bool:
    return seed >> 48 == OURS >> 48


@functools.cache
def may_draw(name: str) -> bool:
    return bool(re.search(MAY_DRAW, name))


def caller() -> list | None:
    """File and line of the innermost call that is none of torch's own: a library's, say."""
    frame = sys._getframe(1)
    while frame and re.match(INNER, frame.f_code.co_filename):
        frame = frame.f_back
    return [frame.f_code.co_filename, frame.f_lineno] if frame else None


# ---- states of generators ----


def position(generator: object = None) -> tuple:
    """Of torch's generators, or of one."""
    states = [state_of(generator or torch.default_generator)]
    if torch.cuda.is_initialized():
        own = torch.cuda.default_generators[torch.cuda.current_device()]
        states += [own.initial_seed(), own.get_offset()]
    return tuple(states)


def digest(states: object) -> str:
    return hashlib.md5(repr(states).encode()).hexdigest()


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    seed_random(seed)
    if seed_numpy:
        seed_numpy(seed % 2**32)


def states() -> list:
    """Of random and numpy."""
    numpy = sys.modules.get("numpy")
    return [random.getstate(), plain(numpy.random.get_state()) if numpy else None]


def kept() -> dict:
    """Where the CPU's generators are: name -> how to put it back."""
    found = {"torch": functools.partial(torch.set_rng_state, torch.get_rng_state())}
    found["random"] = functools.partial(random.setstate, random.getstate())
    if "numpy" in sys.modules:
        own = sys.modules["numpy"].random
        found["numpy.random"] = functools.partial(own.set_state, own.get_state())
    return found


# ---- what it attaches to ----


def watch(probe: str, loaders: object) -> None:
    """The mode is on from now on, and works where a loader has handed out a batch."""

    def followed(own: Callable) -> Callable:
        @functools.wraps(own)
        def call(asked: object) -> object:
            if not draws.ask():
                return own(asked)
            one = getattr(asked, "_doctor", None) if own is own_next else None
            batch = None
            try:
                batch = own(asked)
                return batch
            finally:
                draws.tell(one, batch)

        return call

    own_next = loaders._BaseDataLoaderIter.__next__
    loaders._BaseDataLoaderIter.__next__ = followed(own_next)
    loaders.DataLoader.__iter__ = followed(loaders.DataLoader.__iter__)
    hook(probe, random, "seed", functools.partial(note_seed, "random"))
    if "numpy" in sys.modules:
        tell = functools.partial(note_seed, "numpy.random")
        hook(probe, sys.modules["numpy"].random, "seed", tell)
    draws.__enter__()
    os.register_at_fork(after_in_child=draws.__init__)


def note_seed(name: str, *_: object, **__: object) -> None:
    draws.seeded.add(name)


def new_optimizer(*_: object, **__: object) -> None:
    """A script without a loader has nothing else that shows where its first step begins."""
    draws.optimizes = compares()
    if draws.optimizes and not data.loaders and not draws.on:
        draws.begin()


def after_every_step(probe: str, register: Callable) -> None:
    register(draws.again)


def watch_backward(probe: str, own: Callable) -> None:
    """Of backward passes inside another one, as checkpoints make them, only the outer one ends."""
    inside = False

    @functools.wraps(own)
    def backward(*args: object, **kwargs: object) -> None:
        nonlocal inside
        before, inside = inside, True
        try:
            own(*args, **kwargs)
        finally:
            inside = before
        if not inside:
            draws.again()

    torch.autograd.backward = backward


def watch_engine(probe: str, own: Callable) -> None:
    """A checkpoint draws once more in a backward pass; torch's functions take modes off while they
    run, and backward() is one of them."""

    @functools.wraps(own)
    def run(*args: object, **kwargs: object) -> object:
        on = draws in torch.overrides._get_current_function_mode_stack()
        with contextlib.nullcontext() if on else draws:
            return own(*args, **kwargs)

    torch.autograd._engine_run_backward = run


draws = Draws()
seed_random = random.seed  # before note_seed is attached
seed_numpy = sys.modules["numpy"].random.seed if "numpy" in sys.modules else None
