"""The ResNet-9 that the accuracy benchmarks train (David Page's, "How to train your ResNet", 2018, without whitening): bf16,
channels_last, one-cycle SGD, label smoothing."""
import time

import loaders
import torch
from torch import nn


def _block(inputs, outputs, *more):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), *more)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Scaled(nn.Module):
    def forward(self, x):
        return x * 0.125


def resnet9(width: float = 1) -> nn.Module:
    """``width`` 1 is 64 to 512 channels."""
    a, b, c, d = (int(channels * width) for channels in (64, 128, 256, 512))
    return nn.Sequential(
        _block(3, a), _block(a, b, nn.MaxPool2d(2)), Residual(_block(b, b), _block(b, b)),
        _block(b, c, nn.MaxPool2d(2)), _block(c, d, nn.MaxPool2d(2)), Residual(_block(d, d), _block(d, d)),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(d, 10, bias=False), Scaled(),
    )


def train(seed, epoch, epochs, steps, device, width: float = 1):
    """A trained network, the seconds that training took, and those of them in which the loop waited for its batches.

    ``epoch`` gives an iterator of batches on the device, ``steps`` of them.
    """
    torch.manual_seed(seed)
    net = resnet9(width).to(device, memory_format=torch.channels_last)
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
def answers(net, batches, mirrored: bool = False):
    """(top-1 classes, labels) of every image, in order; ``mirrored``: of the sum of what the network says of the image and
    of its mirror image, as Page and his followers judge."""
    def say(images):
        images = images.contiguous(memory_format=torch.channels_last)
        return net(images) + net(images.flip(3)) if mirrored else net(images)

    made = [(say(images).argmax(1), labels) for images, labels in batches]
    return torch.cat([a for a, _ in made]), torch.cat([b for _, b in made])
