"""The daemon: config, HTTP, alerts, metrics, command line. No tensors: the engine is another process."""
