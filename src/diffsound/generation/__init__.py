"""Making sounds: the pipeline, scenes, edits, and the sound itself."""
