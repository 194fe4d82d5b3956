"""From logits to text: sampling, stopping, sessions, chat, and what measures a model's predictions."""
