"""An ontology (OBO) whose terms have several parents, and labels at mixed levels: some samples are known only coarsely."""

import numpy as np
import torch

from hace import CrossEntropyLoss, metrics
from hace.formats import parse_hierarchy

OBO = """format-version: 1.2

[Term]
id: CL:1
name: cell

[Term]
id: CL:2
name: lymphocyte
is_a: CL:1

[Term]
id: CL:3
name: secretory cell
is_a: CL:1

[Term]
id: CL:4
name: T cell
is_a: CL:2

[Term]
id: CL:5
name: plasma cell
is_a: CL:2
is_a: CL:3

[Term]
id: CL:6
name: goblet cell
is_a: CL:3
"""
h = parse_hierarchy(OBO, "obo")
print(h, "- plasma cell is below", [h.name(node) for node in h.parents("CL:5")])

rng = np.random.default_rng(0)
labels = rng.integers(h.num_leaves, size=600)
x = torch.as_tensor(rng.normal(size=(600, 8)) + 2 * np.eye(8)[labels], dtype=torch.float32)
nodes = h.leaf_nodes[labels]  # targets are node indices here, so that any node can be one
known = nodes.copy()
for i in np.flatnonzero(rng.random(600) < 0.5):  # half of the samples: only a parent is known
    known[i] = h.index(rng.choice(h.parents(h.nodes[nodes[i]])))

loss = CrossEntropyLoss(
    h, outputs="paths", labels="nodes"
)  # classes share the outputs of the nodes above them
head = torch.nn.Linear(8, loss.num_outputs)
for weights in head.parameters():
    torch.nn.init.zeros_(weights)  # a coarse label reinforces whatever random weights prefer below it
optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
for _ in range(100):
    optimizer.zero_grad()
    loss(head(x[:400]), torch.as_tensor(known[:400])).backward()
    optimizer.step()

with torch.no_grad():
    z = loss.leaf_logits(head(x[400:]))
print(f"accuracy {metrics.top_k_accuracy(z, nodes[400:], h, labels='nodes'):.3f}")
print("hierarchical F1", round(float(metrics.hierarchical_prf(z, nodes[400:], h, labels="nodes").f1), 3))
