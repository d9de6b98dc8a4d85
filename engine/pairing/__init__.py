"""Whether a draft model's tokens are the target's, and where they are not, which ones are. Imports no torch."""
