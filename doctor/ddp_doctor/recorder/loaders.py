"""What loaders give: samples, targets, and the random numbers that items are made with."""

import functools
import multiprocessing
import os
from collections import deque
from collections.abc import Callable

import torch
from torch.utils.data import BatchSampler, IterableDataset, Sampler, SequentialSampler, Subset
from torch.utils.data.distributed import DistributedSampler

from .contents import (
    contents,
    described,
    fingerprint,
    keys_of,
    length_of,
    numbered,
    root_of,
    to_root,
)
from .notes import compares, notes, user_line
from .seeds import seeds
from .states import generators
from .training import training
from .window import window

MOST_CONTENTS = 100  # batches of a pass whose items are looked at


class Iteration:
    """One iteration over a loader. It keeps neither alive: a loader that goes ends its workers."""

    def __init__(self, n: int, loader: object) -> None:
        self.n, self.of = n, id(loader)
        self.in_order = getattr(loader, "in_order", True)  # or workers may overtake each other
        self.indexed = not isinstance(loader.dataset, IterableDataset)
        self.line = ""  # where the loader was made
        self.loader = 0  # its number
        self.latest = None  # indices of the latest batch, if they are known
        # For batches to come: indices that its sampler gave, and what --without shuffling has put
        # in their place.
        self.drawn = deque()
        self.asked = 0  # batches that were asked of its sampler
        self.share = None  # of the first run's order
        self.settings = settings_of(loader.dataset)  # when its workers were started
        self.count = 0  # of batches
        self.ended = False
        self.by_grad = False  # its latest batch was asked for where gradients are recorded
        self.learns = False  # the latest batch is to be learned from, so far as one can tell


class Data:
    def __init__(self) -> None:
        self.loaders = 0
        self.passes = 0
        self.making: Iteration | None = None  # the pass whose workers are being started
        self.giving: Iteration | None = None  # the pass that was asked for a batch last
        self.fetchers = (0, 0)  # a process, and how many it has made: each is of a pass
        self.states = None  # of random numbers, before a batch was made

    def made(self, _: object, loader: object, *__: object, **___: object) -> None:
        loader._doctor_made = user_line(loader)

    def new_loader(self, loader: object, dataset: object) -> None:
        """dataset: what its iterator takes items from. The loader may show another one."""
        if getattr(loader, "_doctor", (0, 0))[0] == os.getpid():
            return  # one from before a fork or a pickle is new to this process

        self.loaders += 1
        at = getattr(loader, "_doctor_made", None)
        iterable = isinstance(dataset, IterableDataset)
        root = root_of(dataset)
        sampler = getattr(loader, "sampler", None)
        samplers = [sampler, *inside(sampler)]
        notes.event(
            "loader",
            id=self.loaders,
            at=at,
            iterable=iterable,
            length=None if iterable else length_of(dataset),
            root=None if iterable else length_of(root),
            fingerprint=fingerprint(root),
            described=described(root),
            subset=fingerprint(dataset) if root is not dataset else "",
            numbered=dict(numbered(root)),
            sampler=" of ".join(type(one).__name__ for one in samplers),
            replacement=bool(getattr(sampler, "replacement", False)),
            shuffles=any(map(shuffles, drawing(loader))),
            drawing=type(drawing(loader)[0]).__name__,
            draws=draws(loader.batch_sampler),
            batch_size=loader.batch_size,
            workers=loader.num_workers,
            accelerate=is_of_accelerate(loader),
        )
        loader._doctor = (os.getpid(), self.loaders, str(at))

    def before_pass(self, loader: object) -> None:
        self.passes += 1
        self.making = Iteration(self.passes, loader)

    def drew(self, indices: object, iterator: object) -> None:
        """What a sampler gives for a batch; loader workers get some before the pass is known."""
        one = self.making or getattr(iterator, "_doctor", None)
        if one is not None and one.indexed:
            given = indices.tolist() if hasattr(indices, "tolist") else indices
            # Without collation a tuple is one index, a list those of a batch.
            several = (list, tuple) if getattr(iterator, "_auto_collation", True) else list
            one.drawn.append([list(given) if isinstance(given, several) else [given], None])
            one.asked += 1

    def new_pass(self, iterator: object, loader: object) -> None:
        one, self.making = self.making, None
        first = getattr(iterator, "_doctor", one)
        iterator._doctor = one
        iterator._doctor_source = getattr(iterator, "_dataset", loader.dataset)
        one.first = getattr(first, "first", one.n)
        now, one.settings = one.settings, first.settings if loader.num_workers else one.settings
        stale = [name for name in now if now[name] != one.settings.get(name)]
        self.new_loader(loader, iterator._doctor_source)
        _, one.loader, one.line = loader._doctor
        total = length_of(iterator)
        fields = {"first": one.first, "stale": stale, "seeded": seeds.told()}
        notes.event("pass", n=one.n, at=user_line(), loader=one.loader, total=total, **fields)

    def batch(self, one: Iteration, dataset: object, batch: object) -> None:
        one.count += 1
        indices, given = one.drawn.popleft() if one.drawn else (None, None)
        fields = {"n": one.n}
        if indices is not None:
            fields["indices"] = to_root(dataset, indices)
            if compares() and isinstance(dataset, Subset):
                fields["raw"] = keys_of(indices)
        if given is not None:
            fields["given"] = to_root(dataset, given)
        one.latest = fields.get("given", fields.get("indices")) if one.in_order else None
        if one.count <= MOST_CONTENTS and one.in_order:  # else these may be of other indices
            count = None if indices is None else len(given or indices)
            fields["targets"], fields["items"], fields["shape"] = contents(batch, count)

        notes.event("batch", **fields)
        window.batch(one, training.model())
        if one.count == 3:  # a forward pass, which may broadcast them, lies behind it
            training.buffers(one.n)

    def end_of_pass(self, one: Iteration) -> None:
        one.ended = True
        if one.count in (1, 2):
            training.buffers(one.n)
        notes.event("end", n=one.n)

    def new_process(self, _: object, process: object, *args: object, **kwargs: object) -> None:
        """A loader's worker learns whose it is, however it is started."""
        if self.making is not None:
            process._doctor = (os.getpid(), self.making.n)

    def before_fetch(self, fetcher: object, _: object) -> None:
        """Does making an item draw random numbers? Asked of two batches of each pass."""
        if not hasattr(fetcher, "_doctor"):
            pid, before = self.fetchers
            before = before if pid == os.getpid() else 0  # else those of before a fork
            self.fetchers = (os.getpid(), before + 1)
            fetcher._doctor = [before, 0]  # passes of this worker before this one, batches
        fetcher._doctor[1] += 1
        self.states = generators(fetcher.dataset) if fetcher._doctor[1] <= 2 else None

    def after_fetch(self, _: object, fetcher: object, __: object) -> None:
        worker = torch.utils.data.get_worker_info()
        if self.states is None or (worker is None and self.giving is None):
            return
        if worker is None:
            of, n, again = os.getpid(), self.giving.n, 0
        else:
            of, n = multiprocessing.current_process()._doctor
            again = fetcher._doctor[0]
        after = generators(fetcher.dataset)
        changed = [name for name, state in self.states.items() if state != after[name]]
        states = {name: self.states[name] for name in changed}
        number = worker and worker.id
        notes.event("drew", of=of, n=n, again=again, worker=number, states=states)


def settings_of(dataset: object) -> dict[str, object]:
    """Its numbers and names, which a worker has a copy of."""
    values = getattr(root_of(dataset), "__dict__", {})
    return {name: one for name, one in values.items() if isinstance(one, int | float | str)}


def drawing(loader: object) -> list:
    """What draws its indices. With a batch_sampler, loader.sampler may be one that nobody asks."""
    found = chain(loader)[-1]
    return [found, *inside(found)]


def chain(found: object) -> list:
    """What holds what: accelerate's batch sampler a BatchSampler, which holds a sampler."""
    parts = []
    while found is not None and len(parts) < 5:
        parts.append(found)
        inner = getattr(found, "batch_sampler", None)
        found = getattr(found, "sampler", None) if inner is None else inner
    return parts


def draws(batches: object) -> int | None:
    """How many indices torch's own batches take from their sampler in a pass."""
    return length_of(batches.sampler) if type(batches) is BatchSampler else None


def inside(sampler: object) -> list:
    """Of a DistributedSampler that divides what another one draws, as Lightning's: that one."""
    if not isinstance(sampler, DistributedSampler):
        return []
    holders = [sampler, getattr(sampler, "dataset", None)]
    found = [getattr(one, name, None) for one in holders for name in ("sampler", "_sampler")]
    return [one for one in found if isinstance(one, Sampler)][:1]


def shuffles(sampler: object) -> bool:
    """Whether another epoch may have another order, so far as its class says it."""
    fixed = isinstance(sampler, SequentialSampler | list | tuple | range)
    return not fixed and getattr(sampler, "shuffle", True) is not False


def is_of_accelerate(loader: object) -> bool:
    """Whether accelerate's prepare has made it: it is a common loader, whose parts are not."""
    parts = [loader, loader.dataset, loader.batch_sampler, getattr(loader, "sampler", None)]
    return any(type(part).__module__.startswith("accelerate.") for part in parts)


def follow(probe: str, own_next: Callable) -> None:
    """The iterators of loaders tell what they give."""

    @functools.wraps(own_next)
    def following(iterator: object) -> object:
        one = getattr(iterator, "_doctor", None)
        if one is None:
            return own_next(iterator)
        data.giving = one
        try:
            batch = own_next(iterator)
        except StopIteration:
            notes.call(probe, data.end_of_pass, one)
            raise
        notes.call(probe, data.batch, one, iterator._doctor_source, batch)
        return batch

    torch.utils.data.dataloader._BaseDataLoaderIter.__next__ = following


data = Data()
