"""A plain PyTorch loop: the change from nn.CrossEntropyLoss is three lines, marked below."""

import torch
from sklearn.datasets import load_digits

from hace import HACELoss, Hierarchy, metrics

x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
x = x.float() / 16
h = Hierarchy.from_tree(  # 1. the taxonomy
    {"loops": ["0", "6", "8", "9"], "lines": ["1", "4", "7"], "bows": ["2", "3", "5"]},
    leaves=[str(digit) for digit in range(10)],  # label 0 to 9
)
loss = HACELoss(h)  # 2. the loss
torch.manual_seed(0)
model = torch.nn.Linear(64, loss.num_outputs)  # 3. the size of the head
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(20):
    for batch in torch.randperm(1500).split(100):
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()

with torch.no_grad():
    z, truth = model(x[1500:]), y[1500:]
print(f"accuracy {metrics.top_k_accuracy(z, truth, h):.3f}")
print("accuracy by level", [round(v, 3) for v in metrics.level_accuracy(z, truth, h).tolist()])
