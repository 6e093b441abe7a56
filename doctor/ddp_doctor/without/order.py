"""--without shuffling: the second run trains on its samples in the order of the first.

The first run keeps its own order. In the second, a batch has as many indices as its sampler gives,
and they are the next ones of the rank's share. So a batch that is not divided still shows, and so
does a sampler that gives the whole set to each rank.
"""

import sys
from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import torch

from ..recorder.contents import fingerprint, length_of, root_of
from ..recorder.loaders import chain, data, draws
from ..recorder.notes import notes, place, without
from . import first

LATEST = {}  # a loader's id -> its latest pass, and what the first run told of the same one
# What samplers call their share: torch's and those like it, accelerate's.
NAMES = (("rank", "num_replicas"), ("process_index", "num_processes"), ("rank", "world_size"))


@dataclass
class Share:
    """Of one pass: every `step`-th of the indices of the first run, from `place` on.

    batches: that run's, of all its ranks. whole: it came to its end, so a sampler that fills the
    shares up begins anew.
    """

    batches: list[list]
    whole: bool
    place: int
    step: int

    def __post_init__(self) -> None:
        self.order = [key for batch in self.batches for key in batch]
        # A sampler of one's own may make them of as many tokens: then they stay what they are.
        self.unequal = len({len(batch) for batch in self.batches[:-1]}) > 1
        self.given = 0  # batches
        self.taken = 0  # indices

    def take(self, count: int) -> list:
        self.given += 1
        if self.unequal:
            return sum(self.batches[self.given - 1 : self.given], [])[self.place :: self.step]
        places = [self.place + self.step * n for n in range(self.taken, self.taken + count)]
        self.taken += count
        if self.whole:
            places = [place % len(self.order) for place in places]
        found = [self.order[place] for place in places if place < len(self.order)]
        return found if len(found) == count else []


def replaying(probe: str, own: Callable) -> None:
    """All iterators of loaders get their indices here, from whatever gives them: samplers and batch
    samplers of torch or of the script, lists; for workers, ahead of time."""

    @wraps(own)
    def next_index(iterator: object) -> object:
        drawn = [own(iterator)]
        notes.call(probe, replay, iterator, drawn)
        return drawn[-1]

    torch.utils.data.dataloader._BaseDataLoaderIter._next_index = next_index


def replay(iterator: object, drawn: list) -> None:
    """drawn: what the sampler gave; what takes its place is added."""
    one = data.making or getattr(iterator, "_doctor", None)
    if not without("shuffling") or "shuffling" not in first() or one is None or not one.drawn:
        return
    entry = one.drawn[-1]
    if one.asked == 1:
        one.share = share_of(iterator, len(entry[0]))
    parts = isinstance(drawn[0], tuple) and not iterator._auto_collation  # of one index
    taken = one.share.take(len(entry[0])) if one.share and not parts else []
    if taken:
        entry[1] = [alike(entry[0][0], key) for key in taken]
        drawn.append(batch_of(drawn[0], entry[1]))


def share_of(iterator: object, size: int) -> Share | None:
    """Of the same pass over the same set in the first run, if that trained on it. size: of the
    first batch."""
    dataset, sampler = iterator._dataset, iterator._index_sampler
    left = first()["shuffling"]  # passes that are not begun yet
    one = data.making or iterator._doctor
    before, found = LATEST.pop(one.of, (None, None))
    if found and not before.count:  # nobody took what its workers fetched
        left.insert(0, found)
    same = [found for found in left if found["length"] == length_of(dataset)]
    print_of = fingerprint(root_of(dataset)) if same else ""
    same = [found for found in same if found["fingerprint"] == print_of] or same
    if not same:
        return None
    left.remove(same[0])
    LATEST[one.of] = one, same[0]
    count = draws(sampler)
    mine = count or (length_of(sampler) or 0) * size
    shares = round(same[0]["draws"] / mine) if mine else 0
    share = place_of(chain(sampler), shares, exact=bool(count))
    batches = same[0]["batches"]
    return Share(batches, same[0]["whole"], *share) if share and batches else None


def place_of(samplers: list, shares: int, exact: bool) -> tuple[int, int] | None:
    """Which share the rank has, and of how many. shares: by how much fewer indices it draws than
    the first run; 0 where a length is not told, or endless."""
    rank, world = place()
    again = any(
        getattr(one, "replacement", False) or "Weighted" in type(one).__name__ for one in samplers
    )  # whole epochs on each rank may be other draws
    if world == 1 or (exact and shares == 1 and not again):
        return 0, 1
    for one in samplers:
        for names in NAMES:
            told = tuple(getattr(one, name, None) for name in names)
            if all(type(value) is int for value in told):
                return told
    if shares in (0, world) or again:
        return rank, world
    return (0, 1) if shares == 1 else None


def alike(own: object, key: int | str) -> object:
    """An index, as the first run has noted it, in the type that this sampler gives."""
    key = literal_eval(key) if isinstance(key, str) else key
    return own.new_tensor(key) if isinstance(own, torch.Tensor) else type(own)(key)


def batch_of(own: object, keys: list) -> object:
    if isinstance(own, list | tuple):
        return type(own)(keys)
    if not getattr(own, "shape", ()):
        return keys[0]  # the loader makes no batches
    if isinstance(own, torch.Tensor):
        return own.new_tensor(keys)
    return sys.modules["numpy"].asarray(keys, own.dtype)
