"""Token decoders (sections III-C and IV): autoregressive and Diffsound."""
