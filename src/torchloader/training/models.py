"""The networks that a workload may name, for images with a side of 32 pixels as well as of 224."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchloader.inputs.job import DEPTHS, known

_SMALL = 64  # the side of images, in pixels, up to which the first layer does not reduce the image

_RESNET = {
    10: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_BOTTLENECK_FROM = 50

_VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}

# Channels of an inception block: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; pooled. None: the image is halved.
_INCEPTION = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def build(arch: str, depth: int, classes: int = 1000, image_size: int = 224) -> nn.Module:
    """Return a network of a workload's `arch` and `depth`, with fresh weights, for square images of three channels."""
    if not known(arch, depth):
        depths = "; ".join(f"{name} {', '.join(map(str, some))}" for name, some in DEPTHS.items())
        raise ValueError(f"there is no {arch} of depth {depth}: there are {depths}")
    if image_size < 32:
        raise ValueError(f"images must be at least 32 pixels a side, not {image_size}")
    builders: dict[str, Callable[[int, int, int], nn.Module]] = {
        "resnet": _resnet,
        "vgg": _vgg,
        "googlenet": _googlenet,
    }
    return builders[arch](depth, classes, image_size)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class _Residual(nn.Module):
    """A residual block: its output is added to its input."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * (4 if bottleneck else 1)
        shapes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        if bottleneck:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        layers = [layer for shape in shapes for layer in (*_convolution(*shape), nn.ReLU(inplace=True))]
        self.block = nn.Sequential(*layers[:-1])
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, image: Tensor) -> Tensor:
        return torch.relu(self.block(image) + self.shortcut(image))


def _stem(image_size: int) -> list[nn.Module]:
    if image_size <= _SMALL:
        return [*_convolution(3, 64, 3), nn.ReLU(inplace=True)]
    return [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]


def _resnet(depth: int, classes: int, image_size: int) -> nn.Module:
    layers = _stem(image_size)
    bottleneck = depth >= _BOTTLENECK_FROM
    inputs = 64
    for stage, blocks in enumerate(_RESNET[depth]):
        width = 64 * 2**stage
        for block in range(blocks):
            layers.append(_Residual(inputs, width, 2 if stage and not block else 1, bottleneck))
            inputs = width * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _vgg(depth: int, classes: int, image_size: int) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for stage, convolutions in enumerate(_VGG[depth]):
        outputs = min(512, 64 * 2**stage)
        for _ in range(convolutions):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    side, hidden = (1, 512) if image_size <= _SMALL else (7, 4096)
    layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten()]
    for width in (inputs * side * side, hidden):
        layers += [nn.Linear(width, hidden), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(hidden, classes))


class _Inception(nn.Module):
    """An inception block: convolutions of several sizes, concatenated."""

    def __init__(self, inputs: int, one: int, before3: int, three: int, before5: int, five: int, pooled: int) -> None:
        super().__init__()
        self.outputs = one + three + five + pooled
        relu = nn.ReLU(inplace=True)
        self.branches = nn.ModuleList(
            [
                nn.Sequential(*_convolution(inputs, one, 1), relu),
                nn.Sequential(*_convolution(inputs, before3, 1), relu, *_convolution(before3, three, 3), relu),
                nn.Sequential(*_convolution(inputs, before5, 1), relu, *_convolution(before5, five, 5), relu),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), *_convolution(inputs, pooled, 1), relu),
            ]
        )

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([branch(image) for branch in self.branches], dim=1)


def _googlenet(depth: int, classes: int, image_size: int) -> nn.Module:
    layers = [*_stem(image_size), *_convolution(64, 64, 1), nn.ReLU(inplace=True)]
    layers += [*_convolution(64, 192, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    inputs = 192
    for channels in _INCEPTION:
        if channels is None:
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        else:
            block = _Inception(inputs, *channels)
            inputs = block.outputs
            layers.append(block)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inputs, classes))
