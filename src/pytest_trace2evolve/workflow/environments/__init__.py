"""The built-in environments over the support world, their admission and their calibration."""
