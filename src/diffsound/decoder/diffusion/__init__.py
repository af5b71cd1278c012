"""Discrete diffusion (section IV) as pure functions over index tensors; knows only torch.

Equation numbers are those of the paper's LaTeX source, where section IV has eq. 5 to 26.
"""
