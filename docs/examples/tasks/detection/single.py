"""A detector of torchvision's: lists of images of unlike sizes, a dict of losses, AP50.

python docs/examples/tasks/detection/single.py
"""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign, box_iou

EPOCHS, BATCH = 4, 12


def make_images(count, seed):
    """Stands for your images: one to three bright boxes on dark noise."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        height, width = draw.randint(72, 96), draw.randint(72, 96)
        image = 0.2 * torch.rand(3, height, width, generator=generator)
        boxes = []
        for _ in range(draw.randint(1, 3)):
            h, w = draw.randint(16, 32), draw.randint(16, 32)
            y, x = draw.randint(0, height - h), draw.randint(0, width - w)
            image[:, y : y + h, x : x + w] += 0.6
            boxes.append([x, y, x + w, y + h])
        target = {"boxes": torch.tensor(boxes).float(), "labels": torch.ones(len(boxes)).long()}
        samples.append((image, target))
    return samples


def collate(samples):
    return tuple(zip(*samples, strict=True))


def build_model():
    convs = nn.Conv2d(3, 16, 5, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
    backbone = nn.Sequential(*convs)
    backbone.out_channels = 32
    return FasterRCNN(
        backbone,
        num_classes=2,
        min_size=72,
        max_size=96,
        size_divisible=8,
        rpn_anchor_generator=AnchorGenerator(((24,),), ((0.7, 1.0, 1.4),)),
        rpn_batch_size_per_image=32,
        box_roi_pool=MultiScaleRoIAlign(["0"], 5, 2),
        box_batch_size_per_image=32,
    )


def average_precision(outputs, targets):
    """AP50 of all images: both are dicts, by the number of the image."""
    rows = []
    for number, output in outputs.items():
        overlaps = box_iou(output["boxes"], targets[number]["boxes"])
        for score, overlap in zip(output["scores"], overlaps, strict=True):
            right = overlap.max() >= 0.5
            if right:
                overlaps[:, overlap.argmax()] = 0  # each box is found once
            rows.append([score, right])
    found = torch.tensor(sorted(rows, reverse=True)).reshape(-1, 2)[:, 1].cumsum(0)
    precision = found / torch.arange(1, len(found) + 1)
    recall = found / sum(len(target["boxes"]) for target in targets.values())
    best = precision.flip(0).cummax(0).values.flip(0)
    return (best * recall.diff(prepend=torch.zeros(1))).sum().item()


@torch.inference_mode()
def evaluate(model, loader):
    """Outputs and targets, by the number of the image."""
    model.eval()
    outputs, known = {}, {}
    for number, (images, targets) in enumerate(loader):
        [outputs[number]], [known[number]] = model(images), targets
    return outputs, known


def main():
    train_set, val_set = make_images(65, seed=1), make_images(23, seed=2)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, collate_fn=collate, drop_last=True)
    # One image at a time: in a batch, images are padded to the largest, and scores change.
    val_loader = DataLoader(val_set, 1, collate_fn=collate)

    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    for epoch in range(EPOCHS):
        model.train()
        for images, targets in train_loader:
            loss = sum(model(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        outputs, targets = evaluate(model, val_loader)
        ap = average_precision(outputs, targets)
        print(f"epoch {epoch}: AP50 {ap:.4f} on {len(outputs)} images")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
