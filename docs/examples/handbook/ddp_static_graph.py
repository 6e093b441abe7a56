"""static_graph=True: what it allows, and what happens when the graph changes after all.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_static_graph.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    """A layer that is used twice, recomputed in backward, and one that may not be used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.extra = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs: Tensor, use_extra: bool = False) -> Tensor:
        for _ in range(2):
            inputs = checkpoint(self.layer, inputs, use_reentrant=True)
        return self.extra(inputs) if use_extra else inputs


def attempt(name: str, uses: list[bool], **options: bool) -> None:
    """A backward for each entry; says how far it came."""
    model = DistributedDataParallel(Model(), **options)
    done = 0
    try:
        for use_extra in uses:
            inputs = torch.ones(1, 2, requires_grad=True)
            model(inputs, use_extra).sum().backward()
            done += 1
        print(f"rank {rank} {name}: {done} backward passes")
    except RuntimeError as error:
        print(f"rank {rank} {name}: {done} backward passes, then: {str(error)[:70]}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    attempt("find_unused_parameters", [False] * 3, find_unused_parameters=True)
    attempt("static_graph", [False] * 3, static_graph=True)
    attempt("static_graph, changing", [False, False, True], static_graph=True)
    dist.barrier()
    dist.destroy_process_group()
