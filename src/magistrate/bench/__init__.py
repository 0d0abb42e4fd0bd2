"""How fast, how large and how near to the machine's limits: contenders side by side, a process each."""
