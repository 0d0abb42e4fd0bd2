"""Read spans of traces by the conventions of many tools, and extract the samples in them."""
