"""Small encoders that flag what an output says beyond its context, token by token."""
