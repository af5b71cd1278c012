"""The networks in other formats, and the programs that run them."""
