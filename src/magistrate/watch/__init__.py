"""Production monitoring: read incoming traces, let each rule select what to judge, and judge it."""
