"""Mean and standard deviation of a data set in one pass, equal to those of two passes.

python docs/examples/handbook/tensor_mean_std.py
"""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


def mean_and_std(loader: DataLoader) -> tuple[Tensor, Tensor]:
    """Of each channel. Images are uint8 (N, C, H, W); the results are for pixels from 0 to 1."""
    count = total = squares = 0
    for (images,) in loader:
        pixels = images.double()  # sums of integers: exact in float64 up to 2**53
        count += images.numel() // images.shape[1]
        total += pixels.sum(dim=(0, 2, 3))
        squares += pixels.square().sum(dim=(0, 2, 3))
    mean = total / count
    return mean / 255, (squares / count - mean**2).sqrt() / 255


def made_up_images() -> Tensor:
    """101 images, each with a brightness of its own, as photographs have it."""
    generator = torch.Generator().manual_seed(0)
    bright = torch.randint(0, 156, (101, 3, 1, 1), generator=generator)
    return (bright + torch.randint(0, 100, (101, 3, 16, 16), generator=generator)).byte()


def show(name: str, values: Tensor) -> None:
    print(f"{name:34}", " ".join(f"{v:.4f}" for v in values.tolist()))


if __name__ == "__main__":
    images = made_up_images()
    mean, std = mean_and_std(DataLoader(TensorDataset(images), batch_size=32))
    show("mean, one pass", mean)
    show("std, one pass", std)

    pixels = images.double() / 255  # all of them at once: mean first, then deviations from it
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)), rtol=1e-12, atol=0)
    torch.testing.assert_close(std, pixels.std((0, 2, 3), correction=0), rtol=1e-12, atol=0)
    print("equal to two passes in float64:    True")

    show("wrong: mean of each image's std", pixels.std((2, 3)).mean(0))
    last = [batch.std((0, 2, 3)) for batch in pixels.split(32)]  # 32, 32, 32 and 5 images
    show("wrong: mean of each batch's std", torch.stack(last).mean(0))
