"""A detector of torchvision's: lists of images of unlike sizes, a dict of losses, AP50.

python docs/examples/tasks/detection/single.py --resume
"""

import argparse
import os
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign, box_iou

BATCH = 12
CHECKPOINT = "checkpoint.pt"


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
        for score, overlap in zip(output["scores"].tolist(), overlaps, strict=True):
            right = len(overlap) > 0 and overlap.max().item() >= 0.5
            if right:
                overlaps[:, overlap.argmax()] = 0  # each box is found once
            rows.append((score, right))
    found = np.cumsum([right for _, right in sorted(rows, reverse=True)])
    precision = found / np.arange(1, len(found) + 1)
    recall = found / sum(len(target["boxes"]) for target in targets.values())
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return np.sum(best * np.diff(recall, prepend=0))


def to_device(images, targets, device):
    """Images of unlike sizes stay a list, and a target is a dict."""
    images = [image.to(device) for image in images]
    return images, [{k: v.to(device) for k, v in target.items()} for target in targets]


@torch.inference_mode()
def evaluate(model, loader, device):
    """Outputs and targets, by the number of the image."""
    model.eval()
    outputs, known = {}, {}
    for number, (images, targets) in enumerate(loader):
        [output] = model([image.to(device) for image in images])
        outputs[number] = {name: part.cpu() for name, part in output.items()}
        [known[number]] = targets
    return outputs, known


def save(content, path):
    torch.save(content, f"{path}.tmp")
    with open(f"{path}.tmp", "rb") as file:
        os.fsync(file.fileno())  # or a power cut leaves it empty
    os.replace(f"{path}.tmp", path)  # killed at any moment, it leaves a whole file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--resume", action="store_true", help=f"from {CHECKPOINT}, once it exists")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set, val_set = make_images(65, seed=1), make_images(23, seed=2)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, collate_fn=collate, drop_last=True)
    # One image at a time: a batch is padded to its largest image, and its boxes and scores change
    # with that. So they would hang on the batch, and on the number of ranks.
    val_loader = DataLoader(val_set, 1, collate_fn=collate)

    torch.manual_seed(0)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    done, best = 0, 0.0
    if args.resume and os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        done, best = checkpoint["epoch"], checkpoint["best"]

    for epoch in range(done, args.epochs):
        # The order and the anchors that train follow from the epoch: no random state is saved.
        torch.manual_seed(1000 * (1 + epoch))
        model.train()
        for images, targets in train_loader:
            losses = model(*to_device(images, targets, device))
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        outputs, targets = evaluate(model, val_loader, device)
        score = average_precision(outputs, targets)
        print(f"epoch {epoch}: AP50 {score:.4f} on {len(outputs)} images")
        # Before the checkpoint: killed between the two, the run does this epoch once more.
        if score > best:
            best = float(score)  # torch.load refuses a number of numpy's
            save(model.state_dict(), "best.pt")
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save(parts | {"epoch": epoch + 1, "best": best}, CHECKPOINT)


if __name__ == "__main__":
    main()
