"""Frozen text encoders, and mask-based text generation (section IV-C)."""
