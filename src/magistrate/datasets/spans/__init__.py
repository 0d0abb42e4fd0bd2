"""Spans of traces, read by the conventions of many tools, and the samples that are in them."""
