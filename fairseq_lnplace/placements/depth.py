"""The depth constants of the methods: pure functions of the numbers of encoder (N) and decoder (M) layers.

A model without one of the stacks has 0 layers there. Each function names its paper and equation.
"""

from __future__ import annotations

import math

from fairseq_lnplace.placements.spec import Options, Position


def deepnorm_alpha(position: Position, options: Options) -> float:
    """DeepNet (2203.00555), figure 2: the factor on the skip."""
    n, m = position.encoder_layers, position.decoder_layers
    if position.single_stack:
        return float((2.0 * position.layers) ** 0.25)
    if position.side == "encoder":
        return float(0.81 * (n**4 * m) ** (1 / 16))
    return float((3.0 * m) ** 0.25)


def deepnorm_beta(position: Position, options: Options) -> float:
    """DeepNet (2203.00555), figure 2: the gain on the value, output and feed-forward matrices."""
    n, m = position.encoder_layers, position.decoder_layers
    if position.single_stack:
        return float((8.0 * position.layers) ** -0.25)
    if position.side == "encoder":
        return float(0.87 * (n**4 * m) ** (-1 / 16))
    return float((12.0 * m) ** -0.25)


def deepnorm_beta_torchscale(position: Position, options: Options) -> float:
    """torchscale: 1.15 for the paper's 0.87 in an encoder-decoder's encoder; the rest as in the paper."""
    factor = 1.15 / 0.87 if position.side == "encoder" and not position.single_stack else 1.0
    return factor * deepnorm_beta(position, options)


def half_variance(position: Position, options: Options) -> float:
    """T-Fixup's code: fairseq's gain 1/sqrt(2), as if q, k, v were one matrix, is left on q and k."""
    return math.sqrt(0.5)


def fused_qkv_gain(position: Position, options: Options) -> float:
    """Admin's code (2004.08249): 1/sqrt(2) on the encoder's q, k, v, which are one matrix there."""
    return math.sqrt(0.5) if position.side == "encoder" else 1.0


def admin_analytic_omega(position: Position, options: Options) -> float:
    """admin-torch: sqrt((n+1)/ln(n+1) - 1) for n sub-layers of the stack, an output change of O(log n)."""
    n = position.sublayers
    return math.sqrt((n + 1) / math.log(n + 1) - 1)


def subln_gamma(position: Position, options: Options) -> float:
    """Magneto (2210.06423), figure 2: the gain on the value, output and feed-forward matrices."""
    n, m = position.encoder_layers, position.decoder_layers
    if position.single_stack:
        return math.sqrt(math.log(2 * position.layers))
    if position.side == "encoder":
        return math.sqrt(math.log(3 * m) * math.log(2 * n) / 3)
    return math.sqrt(math.log(3 * m))


def tfixup_gain(position: Position, options: Options) -> float:
    """T-Fixup (Huang et al., ICML 2020), section 3.2: 0.67 N^(-1/4) in the encoder, (9M)^(-1/4) in the decoder."""
    if position.side == "encoder":
        return float(0.67 * position.layers**-0.25)
    return float((9.0 * position.layers) ** -0.25)


def tfixup_embedding_gain(position: Position, options: Options) -> float:
    """T-Fixup, section 3.2: (9N)^(-1/4), N the encoder's depth where there is an encoder."""
    return float((9.0 * (position.encoder_layers or position.decoder_layers)) ** -0.25)


def inverse_sqrt_layer(position: Position, options: Options) -> float:
    """LayerNorm-Scaling (2502.05795), equation 2: 1/sqrt(l), l the layer counted from 1."""
    return float(position.layer**-0.5)


def dsinit_gain(position: Position, options: Options) -> float:
    """DS-Init (1908.11365), equation 6: l^-e, with e = 1/2 in the paper and 1/4 in its released code."""
    return float(float(position.layer ** -float(options["dsinit_exponent"])))


def b2t_gain(position: Position, options: Options) -> float:
    """L^(-1/2) of B2T's released code when ``b2t_rescaled_init`` is on, else 1 as in the paper (2206.00330)."""
    return float(position.layers**-0.5 if options["b2t_rescaled_init"] else 1.0)


def layerscale_lambda(position: Position, options: Options) -> float:
    """CaiT (2103.17239), section 2: 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond; or the option's value."""
    if options["layerscale_init"] is not None:
        return float(options["layerscale_init"])
    return 0.1 if position.layers <= 18 else 1e-5 if position.layers <= 24 else 1e-6


def keel_alpha(position: Position, options: Options) -> float:
    """KEEL (2601.19895), section 3.1: the number of sub-layers of the stack, those of the first layer included."""
    return float(position.sublayers)


def mixln_post_layers(position: Position, options: Options) -> float:
    """Mix-LN (2412.13795): the first floor(a L) layers are Post-LN."""
    # 1e-9: 0.29 * 100 is 28.999… in floating point, and floor(29) is meant.
    return math.floor(float(options["mixln_post_fraction"]) * position.layers + 1e-9)
