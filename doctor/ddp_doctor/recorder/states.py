"""The states of random numbers, hashed: equal ones will draw alike."""

import hashlib
import random
import sys

import torch


def generators(dataset: object = None) -> dict[str, str]:
    """The state of each library's random numbers, and of those a dataset has, hashed."""
    states = {"torch": state_of(torch.default_generator), "random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = plain(sys.modules["numpy"].random.get_state())
    if torch.cuda.is_initialized():
        own = torch.cuda.default_generators[torch.cuda.current_device()]
        states["cuda"] = own.initial_seed(), own.get_offset()

    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    own = getattr(dataset, "__dict__", {})
    for owner in (own, *(getattr(value, "__dict__", {}) for value in own.values())):
        for name, value in owner.items():
            state = state_of(value)
            if state is not None:
                states[f"self.{name}"] = state
    return {name: hashlib.md5(repr(state).encode()).hexdigest() for name, state in states.items()}


def state_of(value: object) -> object:
    """Of a generator of random, torch or numpy; None for anything else."""
    if isinstance(value, torch.Generator):
        state = value.get_state().numpy().tobytes()
        return state[8:] if len(state) > 16 else state  # on a CPU the seed comes first, unused
    if isinstance(value, random.Random):
        return value.getstate()
    if type(value).__module__.startswith("numpy.random"):
        bits = getattr(value, "bit_generator", None)
        return bits.state if bits else plain(value.get_state())
    return None


def plain(state: tuple) -> tuple:
    """numpy's, without the array, whose text takes milliseconds to make."""
    name, keys, *rest = state
    return (name, keys.tobytes(), *rest)
