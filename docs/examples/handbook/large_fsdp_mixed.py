"""FSDP2 with MixedPrecisionPolicy: who sees bfloat16, and who float32.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_fsdp_mixed.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    """A layer that notes which types it computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen = ""

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.seen = f"input {x.dtype}, weight {self.linear.weight.dtype}, output {y.dtype}"
        return y


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    model = nn.Sequential(Block(), nn.Tanh(), Block())
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,  # of the all-gather, and of forward and backward
        reduce_dtype=torch.float32,  # of the reduce-scatter: sums of many ranks
        output_dtype=torch.float32,  # of what the root returns, for the loss
    )
    inner = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh, mp_policy=inner)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    outputs = model(torch.randn(4, 8))
    outputs.square().mean().backward()
    optimizer.step()
    weight = model[0].linear.weight
    if rank == 0:
        print(f"in forward   {model[0].seen}")
        print(f"model output {outputs.dtype}")
        print(f"shard        weight {weight.dtype}, gradient {weight.grad.dtype}")
        print(f"Adam's state {optimizer.state[weight]['exp_avg'].dtype}")
    types = {t.dtype for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values())}
    assert types == {torch.float32} and outputs.dtype == torch.float32
    dist.barrier()
    dist.destroy_process_group()
