"""kohya-ss/sd-scripts issue 924, 2023-11-03: a helper takes the wrapper off before training.

https://github.com/kohya-ss/sd-scripts/issues/924
Right after prepare() a helper replaced the wrapped models by their .module, so that DDP averaged
nothing: N processes trained N models, each on a share of the pictures, and one of them was saved.
The reporter noticed it with a sleep in one worker: the other one did not wait for it.
Mended as the project did: the helper was deleted, and training goes through the wrappers.
Doctor: unequal_gradients at loss.backward()
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16 + 8, 32), nn.SiLU(), nn.Linear(32, 16))

    def forward(self, latents: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([latents, hidden_states], dim=1))


def prepare(*models: nn.Module) -> list[nn.Module]:
    return [DistributedDataParallel(model) for model in models]


def transform_if_model_is_ddp(*models: nn.Module) -> list[nn.Module]:
    return [model.module for model in models]


def train(max_train_epochs: int) -> None:
    captions = torch.randint(0, 50, (96, 6))
    dataset = TensorDataset(torch.randn(96, 16), captions)
    sampler = DistributedSampler(dataset)
    train_dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)

    training_models = prepare(nn.EmbeddingBag(50, 8), UNet())
    if MENDED:
        text_encoder, unet = training_models
    else:
        text_encoder, unet = transform_if_model_is_ddp(*training_models)

    params = [*text_encoder.parameters(), *unet.parameters()]
    optimizer = torch.optim.AdamW(params, lr=0.01)
    torch.manual_seed(dist.get_rank())  # for the noise

    for epoch in range(max_train_epochs):
        sampler.set_epoch(epoch)
        for latents, input_ids in train_dataloader:
            noise = torch.randn_like(latents)
            noise_pred = unet(latents + noise, text_encoder(input_ids))
            loss = nn.functional.mse_loss(noise_pred, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
train(max_train_epochs=2)
dist.destroy_process_group()
