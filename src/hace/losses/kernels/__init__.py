"""The compiled accelerator: optional, for float32 on the CPU; and Triton kernels for CUDA.

It computes what :mod:`hace.losses.numerics` computes and passes the same tests; without it everything works in plain PyTorch.
Eager code calls it directly, ``torch.compile`` sees custom operators, second derivatives go through the PyTorch form.
``benchmarks/losses.py`` prints what it gains.

:mod:`~hace.losses.kernels.extension` has the one question that decides whether it computes a call, `kernel_supports`;
:mod:`~hace.losses.kernels.loss_calls` and :mod:`~hace.losses.kernels.path_sums` are losses and path sums with their place in
autograd; :mod:`~hace.losses.kernels.evaluation` is what evaluation asks, without gradient;
:mod:`~hace.losses.kernels.on_cuda` leads to Triton.

Set ``HACE_KERNEL=0`` in the environment, or use :func:`disabled`, to do without.
"""

from hace.losses.kernels.evaluation import AnswerTable as AnswerTable
from hace.losses.kernels.evaluation import best_answers as best_answers
from hace.losses.kernels.evaluation import best_columns as best_columns
from hace.losses.kernels.evaluation import best_of_levels as best_of_levels
from hace.losses.kernels.evaluation import level_squares as level_squares
from hace.losses.kernels.evaluation import node_log_probs as node_log_probs
from hace.losses.kernels.evaluation import spread as spread
from hace.losses.kernels.evaluation import walk as walk
from hace.losses.kernels.extension import disabled as disabled
from hace.losses.kernels.extension import kernel_supports as kernel_supports
from hace.losses.kernels.extension import status as status
