"""How the embedded model is made and measured."""
