"""ResNet-50 for the one test of the suite that builds torchvision's, where that is not installed.

After He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, 2016. torchvision's
wheels belong to one build of PyTorch each, which the one under test need not be.
"""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace

from torch import Tensor, nn


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; ``4 * width`` channels come out."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = nn.Sequential()
        if stride > 1 or channels != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.relu(self.bn1(self.conv1(x)))
        y = nn.functional.relu(self.bn2(self.conv2(y)))
        return nn.functional.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def _stage(channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(channels, width, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))


def resnet50() -> nn.Sequential:
    """Build the network for 1000 classes; its parts have torchvision's names."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            bn1=nn.BatchNorm2d(64),
            relu=nn.ReLU(),
            maxpool=nn.MaxPool2d(3, 2, 1),
            layer1=_stage(64, 64, 3, 1),
            layer2=_stage(256, 128, 4, 2),
            layer3=_stage(512, 256, 6, 2),
            layer4=_stage(1024, 512, 3, 2),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(2048, 1000),
        )
    )


models = SimpleNamespace(resnet50=resnet50)
