"""timm: the size of its heads, and its own accuracy, which looks at columns."""

from __future__ import annotations

import pytest
import torch

from hace import HACELoss, Hierarchy, metrics

timm = pytest.importorskip("timm")

TREE = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")],
    leaves=["husky", "beagle", "tabby", "siamese"],
)


def test_accuracy_of_timm_takes_the_logits_of_classes() -> None:
    torch.manual_seed(0)
    loss = HACELoss(TREE)
    model = timm.create_model("test_vit", img_size=32, num_classes=loss.num_outputs).eval()
    y = torch.arange(4).repeat(8)
    column = torch.tensor(TREE.leaf_nodes.tolist())[y]
    with torch.no_grad():
        z = (
            model(torch.randn(32, 3, 32, 32)) + torch.eye(loss.num_outputs)[column]
        )  # the truth, a little ahead
    top1, top2 = timm.utils.accuracy(loss.leaf_logits(z), y, topk=(1, 2))
    assert top1.item() == pytest.approx(100 * float(metrics.top_k_accuracy(z, y, TREE)))
    assert top2.item() == pytest.approx(100 * float(metrics.top_k_accuracy(z, y, TREE, k=2)))
    (wrong,) = timm.utils.accuracy(
        z, y
    )  # what the docs warn of: node columns are read as classes, without a word
    assert top1.item() > 50 > wrong.item()
