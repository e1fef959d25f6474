"""A method as a diagram: one encoder and one decoder layer, laid out from the slots.

The stream x runs upwards; beside it stand the branches, the decoder's mirrored, so that the encoder's output comes in
between.
"""
