"""How well judges judge labelled sets, by a protocol that stays as it is."""
