"""The oracle: every placement written as its paper's equation, in plain tensor lines and float64.

It shares no code with ``fairseq_lnplace``, only the names of parameters: the two can be wrong only independently.
Read it beside the papers: `F` is a sub-layer (self-attention, cross-attention or feed-forward), `LN` a normalisation.

Shapes: the stream ``x`` is B x T x C, ``memory`` (the encoder's output) B x S x C, ``padding`` B x T and
``memory_padding`` B x S are True where there is no token. Dropout is off. Layers count from 1 in the equations
(``layer.number``) and from 0 in parameter names.

A learned scale is stored as the difference from its published start value, so that a state of zeros is a fresh model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from torch import Tensor

State = dict[str, Tensor]
Branch = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    """What the equations need besides the weights; a depth of 0 means that the model has no such stack."""

    heads: int = 2
    encoder_layers: int = 3
    decoder_layers: int = 3
    activation: str = "relu"
    eps: float = 1e-5
    norm_type: str = "layernorm"  # of the stack at hand
    causal: bool = True  # the decoder's self-attention; an encoder's never is
    without: frozenset[str] = frozenset()  # norms (last part of their name) that are left out, for reductions
    realformer_mean: bool = False
    resi_dual_scale: float = 1.0
    mixln_post_fraction: float = 0.25
    branchnorm_updates: int = 4000
    updates_done: int = 0
    dlcl_form: str = "pre"
    denseformer_dilation: int = 1  # k
    denseformer_period: int = 1  # p
    layerscale_init: float | None = None
    normformer_resscale: bool = False
    periln_form: str = "embedding_norm"  # or plain_embedding
    hybridnorm_form: str = "published"  # or star (HybridNorm*), or full_width
    keel_form: str = "published"  # or uniform


# ------------------------------------------------------------------------------------------- the depth constants


def sublayers(side: str, N: int, M: int) -> int:
    """Return the number of sub-layers of a stack; a decoder without an encoder has no cross-attention."""
    return 2 * N if side == "encoder" else (3 if N else 2) * M


def deepnorm(side: str, N: int, M: int) -> tuple[float, float]:
    """Return DeepNet's (alpha, beta), table of figure 2 there: encoder-decoder, else one stack of L layers."""
    if not N or not M:
        L = N or M
        return (2 * L) ** 0.25, (8 * L) ** -0.25
    if side == "encoder":
        return 0.81 * (N**4 * M) ** (1 / 16), 0.87 * (N**4 * M) ** (-1 / 16)
    return (3 * M) ** 0.25, (12 * M) ** -0.25


def admin_analytic(side: str, N: int, M: int) -> float:
    """Return admin-torch's omega for an output change of O(log n), n the stack's sub-layers."""
    n = sublayers(side, N, M)
    return math.sqrt((n + 1) / math.log(n + 1) - 1)


def subln_gamma(side: str, N: int, M: int) -> float:
    """Return Magneto's gain on v, out, fc1 and fc2."""
    if not N or not M:
        return math.sqrt(math.log(2 * (N or M)))
    return math.sqrt(math.log(3 * M) * (math.log(2 * N) / 3 if side == "encoder" else 1))


def tfixup_gain(side: str, N: int, M: int) -> float:
    """Return T-Fixup's gain on v, out, fc1 and fc2 (for one stack alone: our extension, that side's own formula)."""
    return 0.67 * math.pow(N, -0.25) if side == "encoder" else math.pow(9 * M, -0.25)


def tfixup_embedding(N: int, M: int) -> float:
    """Return T-Fixup's factor on all embeddings, from the encoder's depth (a decoder alone: its own)."""
    return math.pow(9 * (N or M), -0.25)


def layerscale_start(L: int) -> float:
    """Return CaiT's start value of lambda for a stack of L layers."""
    return 0.1 if L <= 18 else 1e-5 if L <= 24 else 1e-6


@dataclass(frozen=True)
class Constants:
    """A method's depth constants: the factor on the skip and on the branch by side (1 = none)."""

    skip: dict[str, float] = field(default_factory=lambda: {"encoder": 1.0, "decoder": 1.0})
    branch: dict[str, float] = field(default_factory=lambda: {"encoder": 1.0, "decoder": 1.0})


def constants(method: str, N: int | None, M: int | None) -> Constants:
    """Return the start values of the factors on skip and branch for N encoder and M decoder layers (None: no stack).

    A side that does not exist is left out. Admin's skip is 1 until it has been profiled, ReZero's branch 0.
    LayerNorm-Scaling's, Mix-LN's and DLCL's constants differ by layer and are written in their equations below.
    """
    n, m = N or 0, M or 0
    depth = {side: L for side, L in (("encoder", n), ("decoder", m)) if L}
    skip: Callable[[str], float] = {
        "deepnorm": lambda side: deepnorm(side, n, m)[0],
        "admin_analytic": lambda side: admin_analytic(side, n, m),
        "keel": lambda side: float(sublayers(side, n, m)),
    }.get(method, lambda side: 1.0)
    branch: Callable[[str], float] = {
        "rezero": lambda side: 0.0,
        "layerscale": lambda side: layerscale_start(depth[side]),
    }.get(method, lambda side: 1.0)
    return Constants({side: skip(side) for side in depth}, {side: branch(side) for side in depth})


ROLES = [f"{attention}.{role}" for attention in ("self_attn", "encoder_attn") for role in ("q", "k", "v", "out")]
ROLES += ["fc1", "fc2"]


def gain(
    method: str,
    side: str,
    role: str,
    number: int,
    N: int | None,
    M: int | None,
    *,
    exponent: float = 0.5,
    b2t_rescaled: bool = False,
    code: bool = False,
) -> float:
    """Return the factor on the Xavier standard deviation of a matrix of the given role in layer ``number`` (1-based).

    Roles are those of ``ROLES`` and "embedding", whose base is N(0, 1/d). ``code``: what the code has for the paper's
    (DeepNorm: torchscale's 1.15 for 0.87 in the encoder of two stacks; T-Fixup: q and k keep fairseq's 1/√2; Admin:
    the encoder's q, k and v are one 3d x d matrix, whose Xavier deviation is 1/√2 of a d x d one's).
    """
    n, m = N or 0, M or 0
    L = n if side == "encoder" else m
    if role == "embedding":
        return tfixup_embedding(n, m) if method == "tfixup" else 1.0
    if method == "dsinit":
        return math.pow(number, -exponent)
    if method == "b2t" and b2t_rescaled:
        return math.pow(L, -0.5)
    if method == "admin" and code and side == "encoder" and role in ("self_attn.q", "self_attn.k", "self_attn.v"):
        return math.sqrt((1 + 1) / (3 + 1))
    if role.endswith((".q", ".k")):
        return math.sqrt(1 / 2) if method == "tfixup" and code else 1.0
    if method == "deepnorm":
        if code and side == "encoder" and m:
            return 1.15 * (n**4 * m) ** (-1 / 16)
        return deepnorm(side, n, m)[1]
    if method == "subln":
        return 1.0 if role.startswith("encoder_attn") else subln_gamma(side, n, m)
    if method == "tfixup":
        return tfixup_gain(side, n, m)
    return 1.0


def expected_std(gain: float, fan_in: int, fan_out: int) -> float:
    """Return the standard deviation of a Xavier-uniform (or -normal) matrix with the given gain."""
    return gain * math.sqrt(2 / (fan_in + fan_out))


# ------------------------------------------------------------------------------------------- the building blocks


def normalise(kind: str, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, padding: Tensor | None) -> Tensor:
    """Normalise x (B x T x C): per token, or per channel over the real tokens of the batch or the sequence."""
    shift = 0.0 if bias is None else bias
    if kind == "layernorm":
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + shift
    if kind == "rmsnorm":
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    if kind == "scalenorm":
        return weight * x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=eps)
    real = torch.ones_like(x[..., :1]) if padding is None else (~padding).unsqueeze(-1).to(x)
    over = {"batchnorm": (0, 1), "instancenorm": (1,)}[kind]
    count = real.sum(over, keepdim=True)
    centred = x - (x * real).sum(over, keepdim=True) / count
    variance = (centred.square() * real).sum(over, keepdim=True) / count
    return centred / (variance + eps).sqrt() * weight + shift


def squash(kind: str, x: Tensor, g: Tensor, b: Tensor, alpha: Tensor, s: Tensor | None) -> Tensor:
    """Zhu et al. 2025: DyT(x) = g tanh(a x) + b; and Derf(x) = g erf(a x + s) + b. a = 0.5 + alpha."""
    a = 0.5 + alpha
    if kind == "dyt":
        return g * (1 - 2 / (1 + (2 * a * x).exp())) + b
    assert s is not None
    return g * torch.erf(a * x + s) + b


@dataclass
class Stack:
    """A stack's weights and what its layers see besides the stream."""

    side: str
    state: State
    config: Config
    padding: Tensor | None = None
    memory: Tensor | None = None
    memory_padding: Tensor | None = None
    scores: dict[str, Tensor] = field(default_factory=dict)  # RealFormer's sums so far: one chain a kind of attention

    @property
    def depth(self) -> int:
        """The number of layers, L."""
        return self.config.encoder_layers if self.side == "encoder" else self.config.decoder_layers

    @property
    def layers(self) -> list[Layer]:
        """The layers, bottom up."""
        return [Layer(self, number) for number in range(1, self.depth + 1)]

    def norm(self, name: str, x: Tensor, eps: float | None = None) -> Tensor:
        """Return LN(x) with the norm of that name."""
        c = self.config
        if name.rpartition(".")[2] in c.without:
            return x
        weight, bias = self.state[f"{name}.weight"], self.state.get(f"{name}.bias")
        if c.norm_type in ("dyt", "derf"):
            assert bias is not None
            return squash(c.norm_type, x, weight, bias, self.state[f"{name}.alpha"], self.state.get(f"{name}.shift"))
        return normalise(c.norm_type, x, weight, bias, c.eps if eps is None else eps, self.padding)


@dataclass
class Layer:
    """One layer: its sub-layers F, its norms and its learned scales."""

    stack: Stack
    number: int  # 1-based

    def __getitem__(self, name: str) -> Tensor:
        """Return the layer's parameter of that name."""
        return self.stack.state[f"layers.{self.number - 1}.{name}"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return x Wᵀ + b with the layer's matrix of that name."""
        return x @ self[f"{name}.weight"].T + self[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Return LN(x) with the layer's norm of that name."""
        return self.stack.norm(f"layers.{self.number - 1}.{name}", x)

    def norm_of_heads(self, name: str, x: Tensor) -> Tensor:
        """Return LN over each head's C/h features of x (B x T x C), with one weight of C/h numbers for all heads.

        Norms over tokens take each head of each token for one.
        """
        stack, h = self.stack, self.stack.config.heads
        padding = None if stack.padding is None else stack.padding.repeat_interleave(h, 1)
        by_head = x.reshape(x.shape[0], -1, x.shape[2] // h)  # B x T h x C/h
        return replace(stack, padding=padding).norm(f"layers.{self.number - 1}.{name}", by_head).view_as(x)

    def attention(
        self,
        kind: str,
        x: Tensor,
        *,
        previous: Tensor | float = 0.0,
        divisor: int = 1,
        qkv_norms: str = "",
        head_scale: bool = False,
        inner_norm: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return W_o concat_h softmax(Q Kᵀ/√d_k + previous) V, and the scores Q Kᵀ/√d_k + previous before any mask."""
        stack, h = self.stack, self.stack.config.heads
        source, padding = x, stack.padding
        if kind == "encoder_attn":
            assert stack.memory is not None
            source, padding = stack.memory, stack.memory_padding
        projected = []
        for role, tensor in (("q", x), ("k", source), ("v", source)):
            y = self.linear(f"{kind}.{role}_proj", tensor)
            if qkv_norms:
                y = {"head": self.norm_of_heads, "width": self.norm}[qkv_norms](f"{kind}.{role}_norm", y)
            projected.append(y.reshape(*y.shape[:2], h, -1).transpose(1, 2))  # B x h x T x C/h
        q, k, v = projected
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + previous
        visible = scores / divisor
        if padding is not None:
            visible = visible.masked_fill(padding[:, None, None, :], -math.inf)
        if kind == "self_attn" and stack.side == "decoder" and stack.config.causal:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            visible = visible.masked_fill(future, -math.inf)
        heads = visible.softmax(-1) @ v
        if head_scale:
            heads = heads * (1 + self[f"{kind}.head_scale"])[:, None, None]
        joined = heads.transpose(1, 2).flatten(2)
        if inner_norm:
            joined = self.norm(f"{kind}.inner_norm", joined)
        return self.linear(f"{kind}.out_proj", joined), scores

    def feed_forward(self, x: Tensor, *, inner_norm: bool = False) -> Tensor:
        """Return W_2 phi(W_1 x + b_1) + b_2, with a norm of the hidden width before W_2 where a method has one."""
        phi = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}[self.stack.config.activation]
        hidden = phi(self.linear("fc1", x))
        if inner_norm:
            hidden = self.norm("ffn_layernorm", hidden)
        return self.linear("fc2", hidden)

    @property
    def branches(self) -> list[tuple[str, Branch]]:
        """The plain sub-layers in order, as (prefix of their norms' name, F)."""
        found: list[tuple[str, Branch]] = [("self_attn", lambda x: self.attention("self_attn", x)[0])]
        if self.stack.memory is not None:
            found.append(("encoder_attn", lambda x: self.attention("encoder_attn", x)[0]))
        return [*found, ("final", self.feed_forward)]

    def skip_constant(self, method: str) -> float:
        """Return the method's published factor on the skip."""
        c = self.stack.config
        return constants(method, c.encoder_layers, c.decoder_layers).skip[self.stack.side]


# -------------------------------------------------------------------------------------- one layer of each method


def postln_layer(layer: Layer, x: Tensor) -> Tensor:
    """Vaswani et al. 2017: x ← LN(x + F(x))."""
    for P, F in layer.branches:
        x = layer.norm(f"{P}_layer_norm", x + F(x))
    return x


def preln_layer(layer: Layer, x: Tensor) -> Tensor:
    """Xiong et al. 2020: x ← x + F(LN x)."""
    for P, F in layer.branches:
        x = x + F(layer.norm(f"{P}_layer_norm", x))
    return x


def admin_layer(layer: Layer, x: Tensor) -> Tensor:
    """Liu et al. 2020: x ← LN(ω ⊙ x + F(x)), ω profiled."""
    for P, F in layer.branches:
        omega = layer[f"{P}_layer_norm.profiled_skip"] + layer[f"{P}_layer_norm.skip_scale"]
        x = layer.norm(f"{P}_layer_norm", omega * x + F(x))
    return x


def admin_analytic_layer(layer: Layer, x: Tensor) -> Tensor:
    """admin-torch: x ← LN(ω ⊙ x + F(x)), ω starts at √((n+1)/ln(n+1) − 1)."""
    for P, F in layer.branches:
        omega = layer.skip_constant("admin_analytic") + layer[f"{P}_layer_norm.skip_scale"]
        x = layer.norm(f"{P}_layer_norm", omega * x + F(x))
    return x


def deepnorm_layer(layer: Layer, x: Tensor) -> Tensor:
    """Wang et al. 2022: x ← LN(α x + F(x))."""
    alpha = layer.skip_constant("deepnorm")
    for P, F in layer.branches:
        x = layer.norm(f"{P}_layer_norm", alpha * x + F(x))
    return x


def realformer_layer(layer: Layer, x: Tensor) -> Tensor:
    """He et al. 2021: Post-LN with softmax(S_l), S_l = Q Kᵀ/√d_k + S_{l−1}; mean form softmax(S_l/l)."""
    chains = layer.stack.scores  # unmasked, one for each kind of attention
    for P, F in layer.branches:
        if P == "final":
            branch = F(x)
        else:
            divisor = layer.number if layer.stack.config.realformer_mean else 1
            branch, chains[P] = layer.attention(P, x, previous=chains.get(P, 0.0), divisor=divisor)
        x = layer.norm(f"{P}_layer_norm", x + branch)
    return x


def resi_dual_layer(layer: Layer, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Xie et al. 2023: f = F(x); r ← r + s f; x ← LN(x + f)."""
    for P, F in layer.branches:
        f = F(x)
        r = r + layer.stack.config.resi_dual_scale * f
        x = layer.norm(f"{P}_layer_norm", x + f)
    return x, r


def b2t_layer(layer: Layer, x: Tensor) -> Tensor:
    """Takase et al. 2023: Post-LN, and the last sub-layer of the layer adds the layer's input: LN(x_in + x + FFN x)."""
    x_in = x
    for P, F in layer.branches:
        bottom_to_top = x_in if P == "final" else 0.0
        x = layer.norm(f"{P}_layer_norm", bottom_to_top + x + F(x))
    return x


def sandwich_layer(layer: Layer, x: Tensor) -> Tensor:
    """Ding et al. 2021 (CogView): x ← x + LN_out(F(LN_in x))."""
    for P, F in layer.branches:
        x = x + layer.norm(f"{P}_layer_norm.out_norm", F(layer.norm(f"{P}_layer_norm", x)))
    return x


def subln_layer(layer: Layer, x: Tensor) -> Tensor:
    """Wang et al. 2022 (Magneto): x + W_o LN(Attn(LN x)); cross-attention Pre-LN; x + W_2 LN(φ(W_1 LN x))."""
    x = x + layer.attention("self_attn", layer.norm("self_attn_layer_norm", x), inner_norm=True)[0]
    if layer.stack.memory is not None:
        x = x + layer.attention("encoder_attn", layer.norm("encoder_attn_layer_norm", x))[0]
    return x + layer.feed_forward(layer.norm("final_layer_norm", x), inner_norm=True)


def normformer_layer(layer: Layer, x: Tensor) -> Tensor:
    """Shleifer et al. 2021: x + LN(W_o concat_h(γ_h head_h)); x + W_2 LN(φ(W_1 LN x)); rest Pre-LN.

    With ResScale the second is λ ⊙ x + W_2 LN(φ(W_1 LN x)), λ a vector that starts at 1.
    """
    heads, _ = layer.attention("self_attn", layer.norm("self_attn_layer_norm", x), head_scale=True)
    x = x + layer.norm("self_attn_layer_norm.out_norm", heads)
    if layer.stack.memory is not None:
        x = x + layer.attention("encoder_attn", layer.norm("encoder_attn_layer_norm", x))[0]
    branch = layer.feed_forward(layer.norm("final_layer_norm", x), inner_norm=True)
    if not layer.stack.config.normformer_resscale:
        return x + branch
    return (1 + layer["final_layer_norm.skip_scale"]) * x + branch


def rezero_layer(layer: Layer, x: Tensor) -> Tensor:
    """Bachlechner et al. 2020: x ← x + α_l F(x), one α a layer, start 0, no norm."""
    for _, F in layer.branches:
        x = x + layer["layer_scale"] * F(x)
    return x


def tfixup_layer(layer: Layer, x: Tensor) -> Tensor:
    """Huang et al. 2020: x ← x + F(x), no norm; all is in the initialisation."""
    for _, F in layer.branches:
        x = x + F(x)
    return x


def mixln_layer(layer: Layer, x: Tensor) -> Tensor:
    """Li et al. 2025: the first ⌊aL⌋ layers Post-LN, the others Pre-LN."""
    post = math.floor(Fraction(str(layer.stack.config.mixln_post_fraction)) * layer.stack.depth)
    return postln_layer(layer, x) if layer.number <= post else preln_layer(layer, x)


def lnscaling_layer(layer: Layer, x: Tensor) -> Tensor:
    """Sun et al. 2025: x ← x + F(LN(x)/√l), l the layer's number."""
    for P, F in layer.branches:
        x = x + F(layer.norm(f"{P}_layer_norm", x) / math.sqrt(layer.number))
    return x


def hybridnorm_layer(layer: Layer, x: Tensor) -> Tensor:
    """Zhuo et al. 2025: y = x + W_o Attn(LN Q, LN K, LN V); z = LN(y); x ← z + FFN(z); Q, K, V normed head by head.

    HybridNorm*, layer 1: Q, K, V are projections of LN(x), z = y, and x ← y + FFN(LN y).
    Cross-attention is as self-attention (our extension).
    """
    form = layer.stack.config.hybridnorm_form
    over = "width" if form == "full_width" else "head"
    attentions = [P for P, _ in layer.branches[:-1]]
    if form == "star" and layer.number == 1:
        for P in attentions:
            x = x + layer.attention(P, layer.norm(f"{P}_layer_norm", x), qkv_norms=over)[0]
        return x + layer.feed_forward(layer.norm("final_layer_norm", x))
    for P in attentions:
        x = layer.norm(f"{P}_layer_norm", x + layer.attention(P, x, qkv_norms=over)[0])
    return x + layer.feed_forward(x)


def branchnorm_layer(layer: Layer, x: Tensor) -> Tensor:
    """Liu et al. 2023: x ← LN(x + α_t F(x)), α_t = min(1, t/T) with t counted from 1."""
    c = layer.stack.config
    alpha = min(1.0, (c.updates_done + 1) / c.branchnorm_updates)
    for P, F in layer.branches:
        x = layer.norm(f"{P}_layer_norm", x + alpha * F(x))
    return x


def layerscale_layer(layer: Layer, x: Tensor) -> Tensor:
    """Touvron et al. 2021 (CaiT): x ← x + λ ⊙ F(LN x)."""
    given = layer.stack.config.layerscale_init
    start = layerscale_start(layer.stack.depth) if given is None else given
    for P, F in layer.branches:
        lam = start + layer[f"{P}_layer_norm.branch_scale"]
        x = x + lam * F(layer.norm(f"{P}_layer_norm", x))
    return x


def gpas_layer(layer: Layer, x: Tensor) -> Tensor:
    """Chen et al. 2025: Pre-LN, and after every add x ← x − SiLU(g_l) · stop_gradient(x)."""
    g = layer["layer_scale"]
    silu = g / (1 + torch.exp(-g))
    for P, F in layer.branches:
        x = x + F(layer.norm(f"{P}_layer_norm", x))
        x = x - silu * x.detach()
    return x


def keel_layer(layer: Layer, x: Tensor) -> Tensor:
    """Chen and Wei 2026: x ← LN(α x + F(LN x)), α the number of the stack's sub-layers.

    The first layer is plain Pre-LN, x ← x + F(LN x), and its sub-layers count in α; its cross-attention is as its
    other sub-layers (our extension). The uniform form has no such exception.
    """
    if layer.number == 1 and layer.stack.config.keel_form == "published":
        return preln_layer(layer, x)
    alpha = layer.skip_constant("keel")
    for P, F in layer.branches:
        x = layer.norm(f"{P}_layer_norm.second_add_norm", alpha * x + F(layer.norm(f"{P}_layer_norm", x)))
    return x


def respostnorm_layer(layer: Layer, x: Tensor) -> Tensor:
    """Liu et al. 2022 (Swin-V2), OLMo-2: x ← x + LN(F(x))."""
    for P, F in layer.branches:
        x = x + layer.norm(f"{P}_layer_norm.out_norm", F(x))
    return x


LAYERS: dict[str, Callable[[Layer, Tensor], Tensor]] = {
    "postln": postln_layer,
    "preln": preln_layer,
    "preln_final": preln_layer,
    "admin": admin_layer,
    "admin_analytic": admin_analytic_layer,
    "deepnorm": deepnorm_layer,
    "realformer": realformer_layer,
    "b2t": b2t_layer,
    "sandwich": sandwich_layer,
    "subln": subln_layer,
    "normformer": normformer_layer,
    "rezero": rezero_layer,
    "tfixup": tfixup_layer,
    "periln": sandwich_layer,
    "mixln": mixln_layer,
    "lnscaling": lnscaling_layer,
    "hybridnorm": hybridnorm_layer,
    "branchnorm": branchnorm_layer,
    "dsinit": postln_layer,
    "layerscale": layerscale_layer,
    "gpas": gpas_layer,
    "keel": keel_layer,
    "respostnorm": respostnorm_layer,
}
METHODS = sorted([*LAYERS, "resi_dual", "dlcl", "denseformer"])
FINAL_NORM = frozenset(LAYERS) - {
    *("postln", "preln", "admin", "admin_analytic", "deepnorm", "realformer", "b2t", "rezero", "tfixup"),
    *("branchnorm", "dsinit", "keel"),
}


# -------------------------------------------------------------------------------------------------- whole stacks


def resi_dual_streams(stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ResiDual's two streams after the last layer; the second starts at s times the stack's input."""
    r = stack.config.resi_dual_scale * x
    for layer in stack.layers:
        x, r = resi_dual_layer(layer, x, r)
    return x, r


def admin_profile(stack: Stack, x: Tensor) -> list[float]:
    """Return Admin's start values ω_i in execution order: ω_1 = 1, ω_{i+1}² = Var(ω_i x_{i−1}) + Var(F_i).

    Var is one number, the population variance over all elements of the real tokens; x_i uses the ω_i just found.
    """
    real = torch.ones(x.shape[:2], dtype=torch.bool) if stack.padding is None else ~stack.padding
    omega, found = 1.0, []
    for layer in stack.layers:
        for P, F in layer.branches:
            found.append(omega)
            branch, skip = F(x), omega * x
            x = layer.norm(f"{P}_layer_norm", skip + branch)
            omega = math.sqrt(sum((y[real] - y[real].mean()).square().mean().item() for y in (skip, branch)))
    return found


def dlcl_stack(stack: Stack, x: Tensor) -> Tensor:
    """Wang et al. 2019: the input of layer l+1 is Σ_{k≤l} W_{l,k} LN_k(y_k) (pre) or LN_l(Σ_{k≤l} W_{l,k} y_k) (post).

    y_0 is the stack's input and is never normalised, y_l the output of layer l; row L of W gives the stack's output.
    W starts at 1/(l+1).
    """
    pre = stack.config.dlcl_form == "pre"
    weight = stack.state["history.weight"]
    outputs = [x]
    for row in range(stack.depth + 1):
        terms = [y if k == 0 or not pre else stack.norm(f"history.norms.{k - 1}", y) for k, y in enumerate(outputs)]
        x = sum(((1 / (row + 1) + weight[row, k]) * term for k, term in enumerate(terms)), torch.zeros_like(x))
        if not pre and row > 0:
            x = stack.norm(f"history.norms.{row - 1}", x)
        if row < stack.depth:
            layer = Layer(stack, row + 1)
            outputs.append(preln_layer(layer, x) if pre else postln_layer(layer, x))
    return stack.norm("layer_norm", x) if pre else x


def denseformer_terms(row: int, k: int, p: int) -> list[int]:
    """Return the j of the a_lj that are learned in row l, from l down: j ≡ l (mod k) if p divides l, else none."""
    return [j for j in range(row, -1, -1) if (row - j) % k == 0] if row % p == 0 else []


def denseformer_stack(stack: Stack, x: Tensor) -> Tensor:
    """Pagliardini et al. 2024: X_l = Layer_l(Y_{l−1}), Y_l = Σ_j a_lj X_j, Y_0 = X_0 the stack's input; Pre-LN layers.

    Every a_lj is one number, at the start 1 for j = l and else 0; one that is not learned stays so. The final norm is
    of Y_L.
    """
    k, p, L = stack.config.denseformer_dilation, stack.config.denseformer_period, stack.depth
    learned = [(row, j) for row in range(1, L + 1) for j in denseformer_terms(row, k, p)]
    differences = dict(zip(learned, stack.state.get("history.weight", []), strict=True))
    outputs = [x]
    for layer in stack.layers:
        row = layer.number
        outputs.append(preln_layer(layer, x))
        a = [float(j == row) + differences.get((row, j), 0.0) for j in range(row + 1)]
        x = sum((a_j * X_j for a_j, X_j in zip(a, outputs, strict=True)), torch.zeros_like(x))
    return stack.norm("layer_norm", x)


def run(method: str, stack: Stack, x: Tensor) -> Tensor:
    """Return the stack's output for the embedded input x."""
    if method == "denseformer":
        return denseformer_stack(stack, x)
    if method == "dlcl":
        return dlcl_stack(stack, x)
    if method == "resi_dual":
        x, r = resi_dual_streams(stack, x)
        return x + stack.norm("layer_norm", r, eps=1e-7)
    if method == "periln" and stack.config.periln_form == "embedding_norm":
        x = stack.norm("embedding_norm", x)
    for layer in stack.layers:
        x = LAYERS[method](layer, x)
    return stack.norm("layer_norm", x) if method in FINAL_NORM else x


def encoder_stack(method: str, state: State, x: Tensor, padding: Tensor | None, config: Config) -> Tensor:
    """Return the encoder's output, B x T x C, for the embedded input x."""
    return run(method, Stack("encoder", state, config, padding), x)


def decoder_stack(
    method: str,
    state: State,
    x: Tensor,
    memory: Tensor | None,
    memory_padding: Tensor | None,
    config: Config,
    padding: Tensor | None = None,
) -> Tensor:
    """Return the decoder's output, B x T x C, for the embedded input x; without a memory it has no cross-attention."""
    return run(method, Stack("decoder", state, config, padding, memory, memory_padding), x)


# ----------------------------------------------------------------------------------------- the parameters' names


def parameters(
    method: str, side: str, config: Config, width: int, hidden: int, cross: bool
) -> dict[str, tuple[int, ...]]:
    """Return every parameter (and Admin's start buffer) of a stack by name, with its shape."""
    L = config.encoder_layers if side == "encoder" else config.decoder_layers
    attentions = ["self_attn", "encoder_attn"] if cross else ["self_attn"]
    shapes: dict[str, tuple[int, ...]] = {}
    h = config.heads

    def norm(name: str, size: int = width) -> None:
        shapes[f"{name}.weight"] = (1,) if config.norm_type == "scalenorm" else (size,)
        if config.norm_type not in ("scalenorm", "rmsnorm"):
            shapes[f"{name}.bias"] = (size,)
        if config.norm_type in ("dyt", "derf"):
            shapes[f"{name}.alpha"] = (1,)
        if config.norm_type == "derf":
            shapes[f"{name}.shift"] = (1,)

    def matrix(name: str, rows: int, columns: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (rows, columns), (rows,)

    for i in range(L):
        layer = f"layers.{i}"
        star = config.hybridnorm_form == "star" and i == 0  # HybridNorm*'s other first layer
        for A in attentions:
            for role in "q", "k", "v", "out":
                matrix(f"{layer}.{A}.{role}_proj", width, width)
        matrix(f"{layer}.fc1", hidden, width)
        matrix(f"{layer}.fc2", width, hidden)
        for P in [*attentions, "final"]:
            place = f"{layer}.{P}_layer_norm"
            bare = method == "hybridnorm" and P == "final" and not star
            if method not in ("rezero", "tfixup", "respostnorm") and not bare:
                norm(place)
            if method in ("sandwich", "periln", "respostnorm") or (method == "normformer" and P == "self_attn"):
                norm(f"{place}.out_norm")
            if method == "keel" and (i > 0 or config.keel_form == "uniform"):
                norm(f"{place}.second_add_norm")
            resscale = method == "normformer" and config.normformer_resscale and P == "final"
            if method in ("admin", "admin_analytic") or resscale:
                shapes[f"{place}.skip_scale"] = (width,)
            if method == "admin":
                shapes[f"{place}.profiled_skip"] = (1,)
            if method == "layerscale":
                shapes[f"{place}.branch_scale"] = (width,)
        if method == "subln":
            norm(f"{layer}.self_attn.inner_norm")
        if method in ("subln", "normformer"):
            norm(f"{layer}.ffn_layernorm", hidden)
        if method == "normformer":
            shapes[f"{layer}.self_attn.head_scale"] = (config.heads,)
        if method == "hybridnorm":
            for A in attentions:
                for role in "qkv":
                    norm(f"{layer}.{A}.{role}_norm", width if config.hybridnorm_form == "full_width" else width // h)
        if method in ("rezero", "gpas"):
            shapes[f"{layer}.layer_scale"] = (1,)
    if method in {*FINAL_NORM, "resi_dual", "denseformer"} or (method == "dlcl" and config.dlcl_form == "pre"):
        norm("layer_norm")
    if method == "periln" and config.periln_form == "embedding_norm":
        norm("embedding_norm")
    if method == "dlcl":
        shapes["history.weight"] = (L + 1, L + 1)
        for k in range(L):
            norm(f"history.norms.{k}")
    if method == "denseformer":
        k, p = config.denseformer_dilation, config.denseformer_period
        if weights := sum(len(denseformer_terms(row, k, p)) for row in range(1, L + 1)):
            shapes["history.weight"] = (weights,)
    return shapes
