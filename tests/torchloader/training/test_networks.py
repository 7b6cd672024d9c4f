"""The networks of a workload, for large and small images, and the counts of their operations."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from torch import nn  # noqa: E402

from torchloader.inputs.job import DEPTHS  # noqa: E402
from torchloader.training.models import build  # noqa: E402
from torchloader.training.priors import count  # noqa: E402

ALL = [(arch, depth) for arch, depths in DEPTHS.items() for depth in depths]


@pytest.mark.parametrize(("arch", "depth"), ALL)
@pytest.mark.parametrize("size", [32, 224])
def test_every_network_accepts_large_and_small_images(arch: str, depth: int, size: int) -> None:
    with torch.device("meta"):
        model = build(arch, depth, classes=7, image_size=size)
        assert model(torch.empty(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize(("arch", "depth"), [("resnet", 10), ("vgg", 11), ("googlenet", 1)])
def test_a_network_learns(arch: str, depth: int) -> None:
    torch.manual_seed(0)
    model = build(arch, depth, classes=2, image_size=32).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 0, 1])
    losses = []
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("arch", "depth", "parameters", "operations"),
    [
        # Millions and billions as published, an addition and a multiplication being two operations.
        ("resnet", 18, 11.7, 3.6),
        ("resnet", 50, 25.6, 8.2),
        ("resnet", 152, 60.2, 23.0),
        ("vgg", 11, 132.9, 15.2),
        ("vgg", 19, 143.7, 39.3),
        ("googlenet", 1, 7.0, 3.2),
    ],
)
def test_the_networks_are_as_large_as_published(arch: str, depth: int, parameters: float, operations: float) -> None:
    with torch.device("meta"):
        counts = count(build(arch, depth))
    assert counts.parameters / 1e6 == pytest.approx(parameters, rel=0.02)
    assert counts.operations / 1e9 == pytest.approx(operations, rel=0.05)


def test_operations_are_counted_by_kind() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
        nn.Conv2d(8, 16, 1, bias=False),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )
    counts = count(model, (3, 4, 4))
    assert counts.ordinary == 2 * 3 * 8 * 9 * 16
    assert counts.depthwise == 2 * 8 * 9 * 16
    assert counts.pointwise == 2 * 8 * 16 * 16
    assert counts.other == 2 * 256 * 10
    assert counts.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_transposed_convolution_counts_its_inputs() -> None:
    assert count(nn.ConvTranspose2d(3, 8, 2, stride=2, bias=False), (3, 4, 4)).ordinary == 2 * 3 * 8 * 4 * 16


def test_counting_does_not_change_the_model() -> None:
    model = nn.Linear(4, 2)
    assert count(model, (4,)).other == 16
    assert model.training
    assert model.weight.device.type == "cpu"


@pytest.mark.parametrize(("arch", "depth", "size"), [("resnet", 11, 224), ("alexnet", 1, 224), ("vgg", 11, 16)])
def test_an_unknown_network_or_too_small_images_are_an_error(arch: str, depth: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"there is no|at least 32 pixels"):
        build(arch, depth, image_size=size)
