"""Which torchvision this is: some of its transforms have changed."""

import torchvision

TORCHVISION = tuple(int(number) for number in torchvision.__version__.split(".")[:2])
"""(0, 26), for example."""
