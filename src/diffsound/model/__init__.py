"""A model on disk: bundles, published checkpoints, ONNX, and what runs the networks."""
