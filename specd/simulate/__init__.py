"""`specd simulate`: policies against a trace of requests, without a model."""
