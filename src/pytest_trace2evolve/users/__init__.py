"""Users: who plays the customer."""
