"""The JSON API: the values of the views, as they are."""
