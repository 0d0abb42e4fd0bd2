"""What people call: judge, generate, evaluate, guard, and how good a judge is, asked of stored runs."""
