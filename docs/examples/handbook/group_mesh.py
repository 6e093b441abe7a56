"""A device mesh: four ranks as two rows of two, with a group along each dimension.

torchrun --standalone --nproc-per-node 4 docs/examples/handbook/group_mesh.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    rank = dist.get_rank()
    if rank == 0:
        print(f"mesh {mesh.mesh.tolist()}, dimensions {mesh.mesh_dim_names}")
    here = tuple(mesh.get_coordinate())
    for name in mesh.mesh_dim_names:
        group = mesh.get_group(name)
        total = torch.tensor(rank)
        dist.all_reduce(total, group=group)
        members = dist.get_process_group_ranks(group)
        print(f"rank {rank} at {here}: {name} with {members}, total {total.item()}")
    row = mesh["shard"]  # a mesh of one dimension: this is what FSDP2 and DTensor take
    print(f"rank {rank} in its row: {row.get_local_rank()} of {row.size()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
