"""The optimizer before DDP or after it: the same run. What does matter is which tensors it holds.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/cifar_optimizer_order.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build_model() -> nn.Module:
    """Each rank draws other weights, on purpose: DDP makes them those of rank 0."""
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(10):
        inputs = torch.randn(4, 8)
        loss = nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    after = DistributedDataParallel(build_model())
    train(after, build_optimizer(after))

    bare = build_model()
    optimizer, copied = build_optimizer(bare), copy.deepcopy(bare)
    before = DistributedDataParallel(bare)
    same = torch.equal(copied[0].weight, bare[0].weight)
    print(f"rank {rank} a copy of the weights from before DDP is still right: {same}")
    if rank == 0:
        same = all(p is q for p, q in zip(bare.parameters(), before.parameters(), strict=True))
        print(f"DDP keeps the parameters, the very objects: {same}")
        same = nn.SyncBatchNorm.convert_sync_batchnorm(bare[1]).weight is bare[1].weight
        print(f"so does the conversion to SyncBatchNorm: {same}")
    train(before, optimizer)
    torch.testing.assert_close(list(before.parameters()), list(after.parameters()), rtol=0, atol=0)
    if rank == 0:
        print("optimizer first or DDP first, the trained weights are equal: True")

    late = build_model()
    optimizer = build_optimizer(late)
    late[3] = nn.Linear(16, 2)  # a new last layer, of which the optimizer does not know
    late = DistributedDataParallel(late)
    start = copy.deepcopy(late.state_dict())
    train(late, optimizer)
    now = late.state_dict()
    if rank == 0:
        for name, layer in (("first", "module.0.weight"), ("replaced last", "module.3.weight")):
            print(f"the {name} layer has learned: {not torch.equal(now[layer], start[layer])}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
