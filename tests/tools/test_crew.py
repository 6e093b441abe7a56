"""Warm processes: a case knows nothing of the one before."""

import os

from crew import Crew


def sum_over_pair(groups: int) -> float | None:
    """In a crew member: what DTensor makes of the numbers of ranks 0 and 1, once so many other
    groups of ranks have been made."""
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial

    distributed.init_process_group("gloo")
    for _ in range(groups):
        distributed.new_group([0])
    pair, number = DeviceMesh("cpu", [0, 1]), torch.tensor([float(os.environ["RANK"]) + 1])
    whole = DTensor.from_local(number, pair, [Partial()]) * 2
    return whole.full_tensor().item() if pair.get_coordinate() else None


def test_meshes_are_forgotten(crew: Crew) -> None:
    """The mesh of both cases is the same to torch, and the number that names its group in the first
    case names another one in the second."""
    for groups in (0, 1):
        assert crew.run(sum_over_pair, groups, world_size=3) == [6, 6, None], groups
