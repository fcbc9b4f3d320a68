"""A Lightning module: the hierarchy is a hyperparameter, and log_dict takes the metrics."""

import tempfile

import lightning
import torch
from sklearn.datasets import load_iris
from torchmetrics import MetricCollection

from hace import HACELoss, Hierarchy
from hace.metrics import LevelAccuracy, MistakeSeverity


class Classifier(lightning.LightningModule):
    """A linear head over all nodes."""

    def __init__(self, hierarchy, features, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.loss = HACELoss(hierarchy)
        self.head = torch.nn.Linear(features, self.loss.num_outputs)
        self.metrics = MetricCollection(
            {
                "size": LevelAccuracy(hierarchy, level="size"),
                "species": LevelAccuracy(hierarchy, level="species"),
                "severity": MistakeSeverity(hierarchy),
            }
        )

    def training_step(self, batch):
        return self.loss(self.head(batch[0]), batch[1])

    def validation_step(self, batch):
        self.metrics.update(self.head(batch[0]), batch[1])
        self.log_dict(self.metrics)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


iris = load_iris()
h = Hierarchy.from_paths(
    [("small", "setosa"), ("large", "versicolor"), ("large", "virginica")],
    leaves=list(iris.target_names),
    level_names=["size", "species"],
)
lightning.seed_everything(0, verbose=False)
samples = torch.utils.data.TensorDataset(torch.as_tensor(iris.data).float(), torch.as_tensor(iris.target))
train, test = torch.utils.data.random_split(samples, [100, 50])
loaders = [torch.utils.data.DataLoader(part, batch_size=25) for part in (train, test)]
trainer = lightning.Trainer(max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
trainer.fit(Classifier(h, features=4), *loaders)
print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})

with tempfile.TemporaryDirectory() as folder:
    trainer.save_checkpoint(f"{folder}/iris.ckpt")
    again = Classifier.load_from_checkpoint(f"{folder}/iris.ckpt", weights_only=True)
print("read back:", again.hparams.hierarchy)
