"""Anthropic's models, over the Messages API and the official package: `anthropic:MODEL`."""

from magistrate.engines.anthropic.engine import open_engine

__all__ = ["open_engine"]
