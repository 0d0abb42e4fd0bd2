"""Load and run trained encoders that flag unsupported words and sentences of an output."""
