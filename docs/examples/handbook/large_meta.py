"""FSDP2 of a model that only rank 0 builds: what becomes of tied weights and of buffers.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_meta.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy


class Tied(nn.Module):
    """Embedding and head share a weight; a buffer is in no state dict, as RoPE's often are."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", 1 / 2 ** torch.arange(8.0), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.tokens(tokens) * self.scale)


def train_once(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tokens = torch.arange(16)
    cross_entropy(model(tokens), tokens.flip(0)).backward()
    optimizer.step()


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    whole = Tied()  # a real program has it on rank 0 alone; here others compare with it

    for apart in (True, False):
        with torch.device("meta"):
            model = Tied()
        if apart:
            fully_shard(model.tokens, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cpu")  # memory with anything in it
        tied = model.head.weight is model.tokens.weight
        say(f"embedding and head in {'two units' if apart else 'one unit'}: tied: {tied}")
    model.scale.fill_(torch.nan)  # stands for anything

    weights = whole.state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
    say(f"after loading: the buffer is filled: {not model.scale.isnan().any()}")
    for name, buffer in model.named_buffers():  # the repair
        if dist.get_rank() == 0:
            buffer.copy_(whole.get_buffer(name))
        dist.broadcast(buffer, src=0)

    for one in (model, whole):
        train_once(one)
    found = {name: one.full_tensor() for name, one in model.named_parameters()}
    expected = {name: one.detach() for name, one in whole.named_parameters()}
    torch.testing.assert_close(found, expected)
    say(f"buffer sent: after a step the {len(found)} parameter is that of the whole model")
    dist.barrier()
    dist.destroy_process_group()
