"""The pocket model: what it is taught, how it is trained and what its card says."""
