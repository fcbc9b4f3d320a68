"""A timm model with a head over all nodes; timm's own accuracy takes the logits of the classes."""

import timm
import torch
from timm.utils import accuracy

from hace import HACELoss, load_dataset

data = load_dataset("synthetic", classes=5, train=20, test=10)
loss = HACELoss(data.hierarchy)
torch.manual_seed(0)
model = timm.create_model("test_vit", num_classes=loss.num_outputs, img_size=32)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def tensors(split):
    """Images (M, 3, 32, 32) from 0 to 1 and their labels."""
    samples = data[split]
    return torch.as_tensor(samples.pixels).float() / 128 - 1, torch.as_tensor(
        data.hierarchy.labels[samples.nodes]
    )


x, y = tensors("train")
for _ in range(3):
    for batch in torch.randperm(len(x)).split(20):
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()

x, y = tensors("test")
with torch.no_grad():
    (top1,) = accuracy(
        loss.leaf_logits(model.eval()(x)), y, topk=(1,)
    )  # leaf_logits, not the columns of all nodes
print(f"accuracy {top1.item():.1f}%")
