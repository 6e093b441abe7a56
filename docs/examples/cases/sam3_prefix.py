"""facebookresearch/sam3 issue 606, 2026-07-08: nothing of a DDP checkpoint is loaded.

https://github.com/facebookresearch/sam3/issues/606
The loader strips "detector." from the keys, but not the "module." that DDP put before it, and
strict=False asks for no match: the model keeps its random weights, and predicts garbage. Keys that
did not fit were thrown away; a printed list of missing ones was all. Noticed by who loaded a
fine-tuned checkpoint. Mended as the reporter's pull 607 does (open): "module." is stripped, too.
Doctor: wrapped_keys at model.load_state_dict(weights, strict=False)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class Sam3Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
        self.segmentation_head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.segmentation_head(self.backbone(x))


class Sam3(nn.Module):
    """What is trained and saved: the image model is its detector."""

    def __init__(self) -> None:
        super().__init__()
        self.detector = Sam3Image()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.detector(x)


def build_sam3_image_model(checkpoint_path: str) -> Sam3Image:
    weights = {}
    for name, tensor in torch.load(checkpoint_path).items():
        if MENDED:
            name = name.removeprefix("module.")
        if "detector" in name:
            weights[name.replace("detector.", "")] = tensor

    model = Sam3Image()
    missing_keys, _ = model.load_state_dict(weights, strict=False)
    if missing_keys:
        print(f"missing keys: {missing_keys}")
    return model


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 12)
dataset = TensorDataset(x, x[:, :4].argmax(1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(Sam3())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, masks in loader:
        loss = nn.functional.cross_entropy(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if dist.get_rank() == 0:
    torch.save(model.state_dict(), "my_finetuned.pt")
    predictor = build_sam3_image_model("my_finetuned.pt").eval()
    print(f"accuracy {(predictor(x).argmax(1) == dataset.tensors[1]).float().mean():.2f}")
dist.destroy_process_group()
