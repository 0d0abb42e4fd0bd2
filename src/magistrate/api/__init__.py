"""The public functions: judge, generate, evaluate, guard, and analyses of stored runs."""
