"""The support world: a retail domain with the tools of τ² retail over generated stores."""
