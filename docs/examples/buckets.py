"""Which buckets DDP makes of ResNet-50: torchrun --standalone --nproc-per-node 2 THIS_FILE"""

import torch
import torch.distributed as dist
import torchvision
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def remember(sizes: list[float], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Called for each bucket once its last gradient is there, still in backward."""
    sizes.append(round(bucket.buffer().nbytes / 2**20, 1))
    return default_hooks.allreduce_hook(dist.group.WORLD, bucket)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torchvision.models.resnet50())
    sizes: list[float] = []
    model.register_comm_hook(sizes, remember)
    for step in (1, 2, 3):
        sizes.clear()
        model(torch.randn(2, 3, 32, 32)).sum().backward()
        if dist.get_rank() == 0:
            print(f"step {step}: {len(sizes)} all-reduce, MiB: {sizes}")
    dist.destroy_process_group()
