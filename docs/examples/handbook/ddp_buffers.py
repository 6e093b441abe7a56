"""forward_sync_buffers, and gradient_as_bucket_view: what is shared, and when.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_buffers.py
"""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def means(name: str, **options: bool) -> None:
    """BatchNorm's running mean at four moments; momentum 1 makes it the last batch's mean."""
    module = nn.BatchNorm1d(1, momentum=1.0)
    module.running_mean.fill_(10.0 + rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DistributedDataParallel(module, **options)
    seen = [module.running_mean.item()]
    # The mean that forward finds when it begins.
    module.register_forward_pre_hook(lambda *_: seen.append(module.running_mean.item()))
    for step in (1, 2):
        model(torch.tensor([[1.0], [3.0]]) * step + rank).sum().backward()
    seen.append(module.running_mean.item())
    print(f"rank {rank} {name}: made {seen[0]:.0f}, in forward {seen[1:3]}, at the end {seen[3]}")
    for warning in caught:
        print(f"rank {rank} {warning.category.__name__}: {str(warning.message)[:66]}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    means("default")
    means("forward_sync_buffers=False", forward_sync_buffers=False)
    means("broadcast_buffers=False", broadcast_buffers=False)

    for view in (False, True):
        model = DistributedDataParallel(nn.Linear(100, 100), gradient_as_bucket_view=view)
        for _ in (1, 2):  # in the second step the buckets have their final order
            model.zero_grad(set_to_none=False)
            model(torch.ones(1, 100)).sum().backward()
        gradients = [p.grad for p in model.parameters()]
        storages = {g.untyped_storage().data_ptr() for g in gradients}
        print(f"rank {rank} gradient_as_bucket_view={view}: blocks of memory: {len(storages)}")

    dist.barrier()
    dist.destroy_process_group()
