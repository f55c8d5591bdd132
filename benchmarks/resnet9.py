"""The ResNet-9 of the accuracy benchmarks, with bf16, channels_last, one-cycle SGD and label smoothing.

It is David Page's ("How to train your ResNet", 2018) without whitening and without test-time augmentation.
"""

import time

import loaders
import torch
from torch import nn


def _block(inputs, outputs, *more):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), *more
    )


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Scaled(nn.Module):
    def forward(self, x):
        return x * 0.125


def resnet9() -> nn.Module:
    return nn.Sequential(
        _block(3, 64),
        _block(64, 128, nn.MaxPool2d(2)),
        Residual(_block(128, 128), _block(128, 128)),
        _block(128, 256, nn.MaxPool2d(2)),
        _block(256, 512, nn.MaxPool2d(2)),
        Residual(_block(512, 512), _block(512, 512)),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10, bias=False),
        Scaled(),
    )


def train(seed, epoch, epochs, steps, device):
    """Train a network; return it, the seconds of training, and the seconds that the loop waited for batches.

    ``epoch`` returns an iterator of ``steps`` batches on the device.
    """
    torch.manual_seed(seed)
    net = resnet9().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, epochs * steps, pct_start=0.25)
    loaders.synchronise(device)
    begin, waited = time.perf_counter(), 0.0
    for _ in range(epochs):
        asked = time.perf_counter()
        for images, labels in epoch():
            waited += time.perf_counter() - asked
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(net(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            asked = time.perf_counter()
        waited += time.perf_counter() - asked
    loaders.synchronise(device)
    return net.eval(), time.perf_counter() - begin, waited


@torch.no_grad()
def answers(net, batches):
    """Return (top-1 classes, labels) of all images, in order."""
    made = [(net(images.contiguous(memory_format=torch.channels_last)).argmax(1), labels) for images, labels in batches]
    return torch.cat([a for a, _ in made]), torch.cat([b for _, b in made])
