"""Discrete diffusion (section IV) as pure functions over index tensors; knows only torch."""
