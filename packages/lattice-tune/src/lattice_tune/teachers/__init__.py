"""What labels texts: served models, our own, and functions; and the store of their answers."""
