"""The normalisations a placement can be filled with."""

from typing import TYPE_CHECKING, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.layers.recomputed import repeatable

NORM_TYPES = ("layernorm", "rmsnorm", "scalenorm", "dyt", "derf", "batchnorm", "instancenorm")
ENCODER_ONLY_NORM_TYPES = ("batchnorm", "instancenorm")  # they mix positions: a causal decoder would see the future

CAUSAL_NORM_TYPES = tuple(kind for kind in NORM_TYPES if kind not in ENCODER_ONLY_NORM_TYPES)


class Norm(nn.Module):
    """One normalisation over the C features of each position, or none.

    - ``layernorm``: Ba et al. 2016 (1607.06450).
    - ``rmsnorm``: Zhang & Sennrich 2019 (1910.07467), g * x / sqrt(mean(x^2) + eps).
    - ``scalenorm``: Nguyen & Salazar 2019 (1910.05895), g * x / max(|x|, eps), g one number that starts at sqrt(C).
    - ``dyt``: Dynamic Tanh, Zhu et al. 2025 (2503.10622), g * tanh(a * x) + b, a one number that starts at 0.5.
    - ``derf``: github.com/zlab-princeton/Derf, g * erf(a * x + s) + b, s one number that starts at 0.
    - ``batchnorm``: statistics over all real positions of the batch; running ones in evaluation.
    - ``instancenorm``: statistics over the real positions of each sentence.
    - ``none``: the identity, without parameters.

    The reductions, and what tanh and erf are taken of, are in float32 under half precision.

    ``dyt`` and ``derf`` divide by nothing, so that eps plays no part. ``alpha`` is a - 0.5: weight decay pulls towards
    the published start, as it does in :class:`~fairseq_lnplace.placements.spec.Scale`. Left out are the authors' other
    starts of a for language models (DyT's by width and place, Derf's 1) and the learned factor on the embeddings that
    starts at sqrt(C): fairseq multiplies them by sqrt(C) already.

    Args:
        kind: one of the above.
        dim: the number of features C.
        eps: added to the variance; the least norm of scalenorm.
        bias: whether the kinds that have a bias have it.
    """

    if TYPE_CHECKING:  # TorchScript would read these at run time
        weight: Optional[nn.Parameter]
        bias: Optional[nn.Parameter]
        alpha: Optional[nn.Parameter]
        shift: Optional[nn.Parameter]
        running_mean: Optional[Tensor]
        running_var: Optional[Tensor]

    def __init__(self, kind: str, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        if kind != "none" and kind not in NORM_TYPES:
            raise must_be("--norm-type", " or ".join(NORM_TYPES), kind)
        self.kind = kind
        self.by_position = kind not in ENCODER_ONLY_NORM_TYPES
        self.eps = eps
        self.dim = dim
        # None is a plain attribute: fairseq's trainer would log parameters registered as None as shared with each other
        self.weight: Optional[nn.Parameter] = None
        if kind == "scalenorm":
            self.weight = nn.Parameter(torch.full((1,), dim**0.5))
        elif kind != "none":
            self.weight = nn.Parameter(torch.ones(dim))
        has_bias = bias and kind not in ("rmsnorm", "scalenorm", "none")
        self.bias = nn.Parameter(torch.zeros(dim)) if has_bias else None
        self.alpha = nn.Parameter(torch.zeros(1)) if kind in ("dyt", "derf") else None
        self.shift = nn.Parameter(torch.zeros(1)) if kind == "derf" else None
        self.register_buffer("running_mean", torch.zeros(dim) if kind == "batchnorm" else None)
        self.register_buffer("running_var", torch.ones(dim) if kind == "batchnorm" else None)

    def forward(self, x: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        """Normalise ``x`` (B x T x C); ``padding`` (B x T) is True at padding, which statistics leave out."""
        return self.normalize(x, padding)

    def normalize(self, x: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        """Return the normalised ``x``: what forward does, for subclasses that do more."""
        if self.kind == "none":
            return x
        y = self.normalized(x, padding)
        if self.by_position and not torch.jit.is_scripting():
            repeatable(y, self.normalized, x)
        return y

    def normalized(self, x: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        """Return the normalised ``x`` where there is a norm."""
        if self.kind == "layernorm":
            weight: Optional[Tensor] = self.weight
            bias: Optional[Tensor] = self.bias
            if x.dtype == torch.float32 and weight is not None:  # a widened stream in a half-precision model
                weight, bias = weight.float(), None if bias is None else bias.float()
            return F.layer_norm(x, [self.dim], weight, bias, self.eps)
        h = widened(x)
        if self.kind == "rmsnorm":
            h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        elif self.kind == "scalenorm":
            h = h / torch.linalg.vector_norm(h, dim=[-1], keepdim=True).clamp(min=self.eps)
        elif self.kind in ("dyt", "derf"):
            h = self.squashed(h)
        else:
            mean, var = self.statistics(h, padding)
            h = (h - mean) * torch.rsqrt(var + self.eps)
        gain, offset = self.weight, self.bias
        assert gain is not None
        h = h.to(x.dtype) * gain
        return h if offset is None else h + offset

    def squashed(self, h: Tensor) -> Tensor:
        """Return tanh(a * h), or erf(a * h + s) where there is an s."""
        alpha: Optional[Tensor] = self.alpha
        shift: Optional[Tensor] = self.shift
        assert alpha is not None
        h = h * (0.5 + widened(alpha))
        return torch.tanh(h) if shift is None else torch.erf(h + widened(shift))

    def statistics(self, h: Tensor, padding: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Return mean and variance over the real positions of the batch (1 x 1 x C) or the sentence (B x 1 x C)."""
        running_mean, running_var = self.running_mean, self.running_var
        batch = running_mean is not None
        if running_mean is not None and running_var is not None and not self.training:
            return running_mean, running_var
        over = [0, 1] if batch else [1]
        real = torch.ones_like(h[..., :1]) if padding is None else (~padding).unsqueeze(-1).to(h.dtype)
        count = real.sum(over, keepdim=True)
        total = (h * real).sum(over, keepdim=True)
        if batch:
            count, total = all_reduce_sum(count), all_reduce_sum(total)
        mean = total / count.clamp(min=1)
        square = ((h - mean).square() * real).sum(over, keepdim=True)
        if batch:
            square = all_reduce_sum(square)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():  # momentum 0.1 and the unbiased variance, as torch's BatchNorm
                running_mean.lerp_(mean.flatten().to(running_mean.dtype), 0.1)
                unbiased = square / (count - 1).clamp(min=1)
                running_var.lerp_(unbiased.flatten().to(running_var.dtype), 0.1)
        return mean, square / count.clamp(min=1)

    def extra_repr(self) -> str:
        """The kind and size, for printing the model."""
        return "none" if self.kind == "none" else f"{self.kind}, {self.dim}, eps={self.eps}"


def widened(x: Tensor) -> Tensor:
    """Return ``x`` in at least float32."""
    return x if x.dtype == torch.float64 else x.float()


def all_reduce_sum(x: Tensor) -> Tensor:
    """Return the sum of ``x`` over all ranks, with its gradient; ``x`` itself outside of distributed training."""
    return x if torch.jit.is_scripting() else over_ranks(x)


@torch.jit.unused
def over_ranks(x: Tensor) -> Tensor:
    """Return what :func:`all_reduce_sum` does outside of TorchScript, which knows no process groups."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return x
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(x)  # type: ignore[no-any-return, no-untyped-call]
