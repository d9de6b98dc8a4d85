"""Decisions: how far to speculate and what the load allows. Pure: no torch, no clock, no I/O."""
