"""Bulk generation: a file of prompts in, a folder of sounds and a manifest out."""
