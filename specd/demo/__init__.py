"""`specd demo`: a load ramp and an update that ruins a draft, and what controller and alarm make of it."""
