"""The layers: norms, attention, the residual connection that applies a placement, encoder and decoder layer.

Shapes: B sentences, T target or query positions, S source or key positions, C features, H heads, D = C / H.
Inside the stacks tensors are batch-first, B x T x C; fairseq's interface outside of them is T x B x C.
"""
