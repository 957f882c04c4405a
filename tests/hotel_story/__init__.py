"""The story of a hotel's agent: 40 lines of a user's code, gated through every kind of change."""
