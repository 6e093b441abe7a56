"""--without shuffling: no order is drawn."""

from torch.utils.data import DistributedSampler, RandomSampler

from . import without


def shuffling(probe: str, own: object) -> None:
    """No order is drawn, so that a step has the same samples for any number of ranks. A sampler of
    the script's own stays as it is."""
    own_random = RandomSampler.__iter__

    def iterate(sampler: object) -> object:
        some = sampler.replacement or sampler.num_samples != len(sampler.data_source)
        fixed = without("shuffling") and not some
        return iter(range(sampler.num_samples)) if fixed else own_random(sampler)

    def divide(sampler: object) -> object:
        shuffle, sampler.shuffle = sampler.shuffle, sampler.shuffle and not without("shuffling")
        try:
            return own(sampler)
        finally:
            sampler.shuffle = shuffle

    RandomSampler.__iter__ = iterate
    DistributedSampler.__iter__ = divide
