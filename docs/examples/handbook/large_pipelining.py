"""The same pipeline with torch.distributed.pipelining, and the order in which it works.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_pipelining.py
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import mse_loss

PARTS, SIZE, WIDTH = 4, 4, 16


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(world_size)]
    whole = nn.Sequential(*layers)
    inputs, targets = torch.randn(2, PARTS * SIZE, WIDTH)
    loss = mse_loss(whole(inputs), targets)
    loss.backward()
    mine = whole[rank]
    expected = [p.grad for p in mine.parameters()]
    words: list[str] = []
    mine.register_forward_hook(lambda *_: words.append("F"))
    mine[0].bias.register_post_accumulate_grad_hook(lambda _: words.append("B"))

    for Schedule in (ScheduleGPipe, Schedule1F1B):
        mine.zero_grad()
        # A micro-batch as an example tells shape and type, else the first step finds out. What
        # comes from another stage requires grad in it, or no gradient is sent back there.
        received, returned = (torch.empty(SIZE, WIDTH, requires_grad=g) for g in (rank > 0, True))
        stage = PipelineStage(
            mine, rank, world_size, device, input_args=received, output_args=returned
        )
        schedule = Schedule(stage, n_microbatches=PARTS, loss_fn=mse_loss)
        words.clear()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(inputs)  # the whole batch; the schedule cuts it
        elif rank == world_size - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        torch.testing.assert_close([p.grad for p in mine.parameters()], expected)
        line = f"rank {rank} {Schedule.__name__:<13} {' '.join(words)}  gradients equal"
        if losses:
            torch.testing.assert_close(torch.stack(losses).mean(), loss.detach())
            line += f", {len(losses)} losses, their mean too"
        sys.stdout.write(line + "\n")
    dist.barrier()
    dist.destroy_process_group()
