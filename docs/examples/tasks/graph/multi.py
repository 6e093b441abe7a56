"""A graph network on one graph: every step sees all nodes, and the loss is that of 120 of them.

torchrun --standalone --nproc-per-node 2 docs/examples/tasks/graph/multi.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS, CLASSES, NODES = 30, 6, 480


def make_graph():
    """Stands for your graph: most edges join nodes of one class."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(NODES) % CLASSES
    centres = torch.randn(CLASSES, 16, generator=generator)
    features = centres[labels] + 2 * torch.randn(NODES, 16, generator=generator)
    likely = torch.where(labels[:, None] == labels, 0.06, 0.006)
    edges = (torch.rand(NODES, NODES, generator=generator) < likely).triu(1)
    adj = (edges | edges.T).float() + torch.eye(NODES)
    degree = adj.sum(1).rsqrt()
    adj = (degree[:, None] * adj * degree).to_sparse()
    order = torch.randperm(NODES, generator=generator)
    return features, adj, labels, order[:120], order[120:300]


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x, adj):
        return torch.sparse.mm(adj, self.linear(x))


class GCN(nn.Module):
    def __init__(self, width=16, dropout=0.5):
        super().__init__()
        self.gc1 = GraphConvolution(16, width)
        self.gc2 = GraphConvolution(width, CLASSES)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return self.gc2(x, adj)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    features, adj, labels, idx_train, idx_val = make_graph()
    idx_train = idx_train[rank::world_size]  # all ranks see the whole graph

    torch.manual_seed(0)
    model = GCN()
    ddp_model = DistributedDataParallel(model)
    torch.manual_seed(1 + rank)  # other dropout on each rank
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    for epoch in range(EPOCHS):
        model.train()
        output = ddp_model(features, adj)
        loss_train = F.cross_entropy(output[idx_train], labels[idx_train])
        optimizer.zero_grad()
        loss_train.backward()
        optimizer.step()

        model.eval()
        with torch.no_grad():
            output = model(features, adj)
        right = (output[idx_val].argmax(1) == labels[idx_val]).sum()
        loss_train = loss_train.detach() / world_size
        dist.all_reduce(loss_train)
        if (epoch + 1) % 5 == 0 and rank == 0:
            print(f"epoch {epoch}: loss {loss_train:.4f}, {right} of {len(idx_val)} right")
            torch.save(model.state_dict(), "model.pt")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
