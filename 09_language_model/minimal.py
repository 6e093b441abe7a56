"""A language model of which each process keeps a part (or on two CPU processes).

torchrun --standalone --nproc-per-node 2 09_language_model/minimal.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # batch, heads, places, width of a head
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def main() -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # without it every process opens GPU 0 as well
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend)  # waits for all
    rank, world_size = dist.get_rank(), dist.get_world_size()

    text = b"".join(
        b"%d and %d are %d. " % (a, b, a + b) for a in range(50) for b in range(50)
    )
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()  # bytes
    context, batch_size = 32, 16  # of all processes together
    count = len(tokens) // context - 1

    torch.manual_seed(0)  # all draw the same weights; then each keeps its part
    blocks = [Block(64, 4) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(256, 64), *blocks, nn.Linear(64, 256)).to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for block in blocks:
        fully_shard(block, mesh=mesh)  # whole while it computes, then freed
    fully_shard(model, mesh=mesh)  # the root last: it takes what is left
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # of the parts

    for step in range(60):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(step))
        mine = order[:batch_size][rank::world_size]
        windows = torch.stack([tokens[n * context :][: context + 1] for n in mine])
        inputs, targets = windows[:, :-1].to(device), windows[:, 1:].to(device)
        logits = model(inputs).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, targets.flatten())
        optimizer.zero_grad()
        loss.backward()  # each process gets the average of its part of the gradients
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the norm of all parts
        optimizer.step()
        if rank == 0 and step % 20 == 19:  # the loss is that of its own share
            print(f"step {step + 1}  loss {loss.item():.4f}")

    options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = states.get_model_state_dict(model, options=options)  # all must come
    if rank == 0:
        torch.save(weights, "model.pt")  # one writer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
