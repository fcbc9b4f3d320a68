"""The Trainer of transformers with a hierarchical loss, metrics, and gradient accumulation."""

import tempfile

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from hace import HACELoss, load_dataset
from hace.metrics import trainer_metrics

data = load_dataset("synthetic", classes=5, train=16, test=8)
loss = HACELoss(data.hierarchy)
set_seed(0)
model = ViTForImageClassification(
    ViTConfig(
        id2label=loss.id2label,  # names the columns of the head, and so sizes it
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
)


def rows(split):
    """Samples as the Trainer takes them."""
    samples = data[split]
    images, labels = torch.as_tensor(samples.pixels).float() / 128 - 1, data.hierarchy.labels[samples.nodes]
    return [{"pixel_values": x, "labels": int(y)} for x, y in zip(images, labels, strict=True)]


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=rows("train"),
        eval_dataset=rows("test"),
        compute_loss_func=loss,
        compute_metrics=trainer_metrics(loss),
    )
    trainer.train()
    metrics = trainer.evaluate()
print(
    {
        name: round(metrics[name], 3)
        for name in ("eval_accuracy", "eval_mistake_severity", "eval_hierarchical_f1")
    }
)
