"""The backbone of fixed filters: it needs no weights, sees what it should, and comes back from a file."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("timm")
pytest.importorskip("torchvision")

from hace import load_backbone
from hace.lab.features.backbones import EDGES

EDGE_FEATURES = 576


def test_it_needs_no_weights_and_is_the_same_every_time() -> None:
    first, second = load_backbone(EDGES), load_backbone(EDGES)
    photos = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert first.dims == first(photos).shape[1] == 684
    assert torch.equal(first(photos), second(photos))
    assert first.weights == second.weights


def test_edges_have_a_direction_a_place_and_no_contrast() -> None:
    backbone = load_backbone(EDGES)
    wave = torch.sin(torch.arange(64) * 2 * torch.pi / 6)
    across = (0.5 + 0.4 * wave).expand(1, 3, 64, 64).clone()
    faint = (0.5 + 0.1 * wave).expand(1, 3, 64, 64).clone()
    corner = torch.full((1, 3, 64, 64), 0.5)
    corner[:, :, :32, :32] = across[:, :, :32, :32]
    both = [
        backbone(x)[0, :EDGE_FEATURES].reshape(-1, 4, 4)
        for x in (across, across.transpose(2, 3), faint, corner)
    ]
    along, turned, weak, placed = both
    assert not torch.allclose(along, turned, atol=0.1)
    alike = torch.corrcoef(torch.stack([along.flatten(), weak.flatten(), turned.flatten()]))
    assert alike[0, 1] > 0.97 > 0.9 > alike[0, 2]
    assert placed[:, :2, :2].sum() > 2 * placed[:, 2:, 2:].sum()


def test_colours_have_a_place() -> None:
    backbone = load_backbone(EDGES)
    photo = torch.zeros(1, 3, 64, 64)
    photo[:, 0, :32] = 1  # red above black
    shares = backbone(photo)[0, EDGE_FEATURES:].reshape(27, 2, 2)
    assert (shares[18] == torch.tensor([[1.0, 1.0], [0.0, 0.0]])).all()  # red
    assert (shares[0] == torch.tensor([[0.0, 0.0], [1.0, 1.0]])).all()  # black
