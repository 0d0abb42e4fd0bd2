"""`magistrate bench quality`: how well judges judge labelled sets, by a protocol that does not move."""
