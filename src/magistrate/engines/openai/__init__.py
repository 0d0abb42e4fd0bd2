"""Models on servers that speak OpenAI's protocol: `openai:MODEL`, with `--base-url`."""

from __future__ import annotations

from magistrate.engines.base import Engine
from magistrate.engines.settings import EngineSettings


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """The engine of `MODEL` or `MODEL,option=value,…`, its requests repeated and paced where that helps.

    The address is that of the settings, else `$OPENAI_BASE_URL`, else OpenAI's own; the key is
    `$OPENAI_API_KEY`. Raises `MissingExtra`, `SpecError` for what is not known, and `EngineError` where the
    server cannot be asked.
    """
    from magistrate.engines.openai.engine import OpenAIEngine
    from magistrate.engines.openai.options import base_url, key_for, read_options
    from magistrate.engines.remote.addresses import is_local
    from magistrate.engines.remote.calling import FIRST
    from magistrate.engines.remote.steady import steady

    settings.refuse("an OpenAI-compatible engine", "device", "threads", "hidden_states")
    name, options = read_options(model)
    url = base_url(settings.base_url)
    engine = OpenAIEngine(name, base_url=url, key=key_for(url), timeout=settings.timeout, options=options)
    first = engine.slots or (FIRST if is_local(url) else None)
    return steady(engine, concurrency=settings.concurrency, first=first, timeout=settings.timeout)


__all__ = ["open_engine"]
