"""Scripts that made the embedded model and compared ways of training. Not part of the wheel."""
