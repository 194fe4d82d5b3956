"""How networks are stored: one module a format."""
