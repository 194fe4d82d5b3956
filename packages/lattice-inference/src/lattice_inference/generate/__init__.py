"""Text generation: sampling, stopping, sessions, chat, and measures of model quality."""
