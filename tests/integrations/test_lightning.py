"""Lightning: hierarchies in checkpoints, collections of metrics in logs."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hace import HACELoss, Hierarchy, cifar100_hierarchy
from hace.metrics import HierarchicalPRF, LevelAccuracy

TREE = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")],
    leaves=["husky", "beagle", "tabby"],
    level_names=["kind", "breed"],
)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["torch, hace", "torch, hace.losses", "hace.hierarchy, torch, hace.losses"])
def test_a_checkpoint_with_a_hierarchy_loads_weights_only(tmp_path: Path, first: str) -> None:
    path = tmp_path / "checkpoint.pt"
    dag = Hierarchy.from_parents({"a": None, "b": None, "x": ["a", "b"], "y": "a"}, names={"x": "Ex"})
    torch.save([TREE, dag, Hierarchy.flat(["p", "q"]), cifar100_hierarchy()], path)
    code = f"import {first}; print([h.fingerprint for h in torch.load({str(path)!r}, weights_only=True)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    same = [h.fingerprint for h in (TREE, dag, Hierarchy.flat(["p", "q"]), cifar100_hierarchy())]
    assert done.stdout.strip() == str(same)
    assert torch.load(path, weights_only=True)[:2] == [TREE, dag]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_module_trains_logs_and_comes_back(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning")
    from torchmetrics import MetricCollection

    class Module(lightning.LightningModule):
        def __init__(self, hierarchy: Hierarchy, rate: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.loss = HACELoss(hierarchy)
            self.head = nn.Linear(4, self.loss.num_outputs)
            self.metrics = MetricCollection(
                {
                    "kind": LevelAccuracy(hierarchy, level="kind"),
                    "breed": LevelAccuracy(hierarchy, level=2),
                    "f1": HierarchicalPRF(hierarchy, value="f1"),
                }
            )

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return self.loss(self.head(batch[0]), batch[1])

        def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
            self.metrics.update(self.head(batch[0]), batch[1])
            self.log_dict(self.metrics)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])

    x, y = torch.eye(4)[:3].repeat(4, 1), torch.arange(3).repeat(4)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module(TREE)
    trainer.fit(module, batches, batches)
    seen = {name: float(value) for name, value in trainer.callback_metrics.items()}
    answers = module.loss.leaf_logits(module.head(x)).argmax(1)
    assert seen["breed"] == pytest.approx((answers == y).double().mean().item())
    assert seen["kind"] == pytest.approx((answers // 2 == y // 2).double().mean().item())
    assert set(seen) == {"kind", "breed", "f1"}
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = Module.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert again.hparams["hierarchy"] == TREE
    torch.testing.assert_close(again.head.weight, module.head.weight)
