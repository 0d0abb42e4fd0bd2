"""Models on servers with OpenAI's protocol: `openai:MODEL`, with `--base-url`."""

from magistrate.engines.openai.engine import open_engine

__all__ = ["open_engine"]
