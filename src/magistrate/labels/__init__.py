"""Labels by people: which samples they get, what they say together, and figures that are not biased."""
