"""The support world: the interface of τ² retail with code, policy and data of our own."""
