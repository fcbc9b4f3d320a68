"""The Trainer of transformers: the loss as `compute_loss_func`, metrics, names of classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hace import CrossEntropyLoss, HACELoss, Hierarchy, build_loss
from hace.errors import ConfigError, DataError
from hace.metrics import trainer_metrics

transformers = pytest.importorskip("transformers")

TREE = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")],
    leaves=["husky", "beagle", "tabby", "siamese"],
    level_names=["kind", "breed"],
)


class Images(torch.utils.data.Dataset):
    """24 small images; the label of one in six is ignored."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(0)
        self.images = torch.randn(24, 3, 8, 8, generator=made)
        self.labels = [-100 if i % 6 == 5 else i % 4 for i in range(24)]

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": self.images[i], "labels": self.labels[i]}


def model_for(loss: Any) -> Any:
    transformers.set_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        id2label=loss.id2label,
        label2id={name: i for i, name in loss.id2label.items()},
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.ViTForImageClassification(config)


def trained(loss: Any, folder: Path, batch: int, accumulation: int, **more: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        max_steps=2,
        learning_rate=0.5,
        optim="sgd",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(
        model_for(loss), arguments, train_dataset=Images(), compute_loss_func=loss, **more
    )
    trainer.train()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 3.0, 0.5]], ids=["plain", "weighted"])
def test_accumulated_steps_are_those_of_one_large_batch(tmp_path: Path, weight: Any) -> None:
    loss = HACELoss(TREE, weight=weight)
    whole = trained(loss, tmp_path, 12, 1).model.state_dict()
    parts = trained(loss, tmp_path, 3, 4).model.state_dict()
    initial = model_for(loss).state_dict()
    moved = max((whole[name] - initial[name]).abs().max() for name in whole)
    assert moved > 1e-2
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_trainer_evaluates_with_metrics_of_the_hierarchy(tmp_path: Path) -> None:
    loss = build_loss("cross_entropy_paths", TREE)
    trainer = trained(loss, tmp_path, 8, 1, compute_metrics=trainer_metrics(loss))
    evaluation = trainer.evaluate(Images())
    logits = trainer.predict(Images()).predictions
    labels = torch.tensor(Images().labels)
    labelled = labels >= 0
    answers = loss.leaf_logits(torch.as_tensor(logits)).argmax(1)
    assert evaluation["eval_accuracy"] == pytest.approx((answers == labels)[labelled].double().mean().item())
    same_kind = (answers // 2 == labels // 2)[labelled].double().mean().item()
    assert evaluation["eval_accuracy_kind"] == pytest.approx(same_kind)
    assert {"eval_mistake_severity", "eval_hierarchical_distance", "eval_hierarchical_f1"} <= set(evaluation)
    json.dumps(evaluation)  # the Trainer writes them to its state


def test_the_loss_names_the_columns_of_its_head() -> None:
    assert CrossEntropyLoss(TREE).id2label == dict(enumerate(TREE.leaves))
    assert HACELoss(TREE).id2label == dict(enumerate(TREE.nodes))
    twice = Hierarchy.from_edges(
        [("a", "x"), ("a", "y")], names={"a": "teal", "x": "teal", "y": "duck"}, leaves=["x", "y"]
    )
    assert HACELoss(twice).id2label == {0: "teal [a]", 1: "teal [x]", 2: "duck"}
    config = transformers.ViTConfig(id2label=HACELoss(TREE).id2label)
    assert config.num_labels == HACELoss(TREE).num_outputs


def test_a_mean_over_several_batches() -> None:
    z, y = torch.randn(10, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3, -100, 0, 1, 2, 3, -100])
    loss = HACELoss(TREE)
    parts = [loss(z[i : i + 2], y[i : i + 2], num_items_in_batch=torch.tensor(8)) for i in range(0, 10, 2)]
    torch.testing.assert_close(sum(parts), loss(z, y))
    soft = torch.rand(10, 4, dtype=torch.float64)
    parts = [loss(z[i : i + 5], soft[i : i + 5], num_items_in_batch=soft.numel()) for i in (0, 5)]
    torch.testing.assert_close(sum(parts), loss(z, soft))
    total = HACELoss(TREE, reduction="sum")
    torch.testing.assert_close(total(z, y, num_items_in_batch=8), total(z, y))


def test_outputs_of_models_that_return_a_dict() -> None:
    z, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    loss = HACELoss(TREE)
    torch.testing.assert_close(loss({"logits": z}, y, num_items_in_batch=4), loss(z, y))
    with pytest.raises(DataError, match="input must be a tensor of floating-point logits"):
        loss({"scores": z}, y)


@pytest.mark.parametrize("count", [-1, "4", float("nan"), True])
def test_a_number_of_items_that_is_none(count: Any) -> None:
    with pytest.raises(ConfigError, match=r"num_items_in_batch must be a number of at least 0\. Got"):
        HACELoss(TREE)(torch.randn(1, 6), torch.tensor([0]), num_items_in_batch=count)
