"""Anthropic's models, over the Messages API and the official package."""

from __future__ import annotations

from dataclasses import replace

from magistrate.engines.base import Engine
from magistrate.engines.settings import EngineSettings


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """The engine of `anthropic:MODEL`, options behind the name: `anthropic:MODEL,choose=sampled,draws=10`.

    The key is taken from `$ANTHROPIC_API_KEY`, the address from `settings.base_url`, else
    `$ANTHROPIC_BASE_URL`. The server is asked once what the model can do. Raises `MissingExtra`, `SpecError`,
    and what stands in the way of asking.
    """
    from magistrate.engines.anthropic.client import Client
    from magistrate.engines.anthropic.engine import AnthropicEngine
    from magistrate.engines.anthropic.options import address, key_for, read_options
    from magistrate.engines.remote.addresses import is_local
    from magistrate.engines.remote.calling import FIRST, LOOKING, TIMEOUT, Caller
    from magistrate.engines.remote.naming import warn_misnamed
    from magistrate.engines.remote.steady import steady
    from magistrate.engines.remote.wire import awaited

    settings.refuse("an engine on a server", "device", "threads", "hidden_states")
    name, options = read_options(model)
    url = address(settings.base_url)
    timeout = TIMEOUT if settings.timeout is None else settings.timeout
    client = Client(url, key_for(url), f"anthropic:{name} at {url}", timeout)
    looking = Caller(client.who, replace(LOOKING, timeout=timeout))
    said, _ = awaited(looking.answered(lambda: client.model(name)))
    if said is None and (listed := awaited(client.listed())) and name not in listed:
        warn_misnamed(url, name, listed)
    engine = AnthropicEngine(client, name, options, said)
    first = FIRST if is_local(url) else None
    return steady(engine, concurrency=settings.concurrency, first=first, timeout=timeout)
