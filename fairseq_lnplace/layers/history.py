"""Sums over the outputs of all layers below: what the next layer reads, or the stack's end."""

from typing import List, Optional

import torch
from torch import Tensor, nn

from fairseq_lnplace.layers.norm import Norm


class History(nn.Module):
    """DLCL's dynamic combination of layers (Wang et al. 2019, 1906.01787, section 3).

    The input of layer l+1 is a learned sum of y_0 (the embeddings) and the outputs y_1 ... y_l of all layers.

    Pre form: sum_k W[l, k] * LN_k(y_k), where LN_0 is the identity. Post form: LN_l(sum_k W[l, k] * y_k), without a
    norm for l = 0. ``weight`` holds W's difference from its start, 1/(l+1) in row l.

    Args:
        layers: the number of layers L.
        dim: the number of features C.
        norm_type: the kind of the L norms.
        norm_before_sum: whether it is the pre form.
        eps: what the norms add to the variance.
    """

    def __init__(self, layers: int, dim: int, norm_type: str, norm_before_sum: bool, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layers + 1, layers + 1))
        self.norms = nn.ModuleList([Norm(norm_type, dim, eps) for _ in range(layers)])
        self.norm_before_sum = norm_before_sum

    def forward(self, outputs: List[Tensor], y: Tensor, padding: Optional[Tensor]) -> Tensor:
        """Append y_l (B x T x C) to the ``outputs`` of the layers below and return the next layer's input."""
        below = len(outputs)
        if self.norm_before_sum:
            y = self.norm(below, y, padding)
        outputs.append(y)
        weight = (1.0 / (below + 1) + self.weight[below]).to(y.dtype)
        total = outputs[0] * weight[0]
        for k in range(1, below + 1):
            total = torch.addcmul(total, outputs[k], weight[k])
        return total if self.norm_before_sum else self.norm(below, total, padding)

    def norm(self, below: int, x: Tensor, padding: Optional[Tensor]) -> Tensor:
        """Return LN_l(x) for l = ``below`` > 0, and x for l = 0."""
        for index, norm in enumerate(self.norms):
            if index + 1 == below:
                x = norm(x, padding)
        return x


class DepthAverage(nn.Module):
    """DenseFormer's depth-weighted average (Pagliardini et al. 2024, 2402.02622).

    Behind layer l stands sum_j a[l, j] * y_j, j = l, l - k, l - 2k, ... >= 0 with the dilation k, wherever the period p
    divides l, and y_l elsewhere; y_0 are the embeddings, and the y themselves are not averaged. ``weight`` holds the
    a[l, j] in this order, as differences from their start: 1 for j = l, else 0.

    Args:
        layers: the number of layers L.
        dilation: k.
        period: p.
    """

    def __init__(self, layers: int, dilation: int, period: int) -> None:
        super().__init__()
        self.dilation = dilation
        rows = [len(range(row, -1, -dilation)) if row and row % period == 0 else 0 for row in range(layers + 1)]
        self.ends: List[int] = [sum(rows[: row + 1]) for row in range(layers + 1)]
        self.weight = nn.Parameter(torch.zeros(sum(rows)))

    def forward(self, outputs: List[Tensor], y: Tensor, padding: Optional[Tensor]) -> Tensor:
        """Append y_l (B x T x C) to the ``outputs`` of the layers below and return the next layer's input."""
        below = len(outputs)
        outputs.append(y)
        end = self.ends[below]
        start = self.ends[below - 1] if below > 0 else 0
        weight = self.weight[start:end].to(y.dtype)
        total = y
        for n in range(end - start):
            total = torch.addcmul(total, outputs[below - n * self.dilation], weight[n])
        return total
