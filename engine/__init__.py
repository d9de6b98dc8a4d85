"""Tokens in, tokens out: batching, KV, drafting, verification. No HTTP, no MQTT, no config files."""
