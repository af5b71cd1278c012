"""From recordings to training shards, and the loaders that read them."""
