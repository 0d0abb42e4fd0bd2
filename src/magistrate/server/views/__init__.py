"""What pages and the API show, as frozen values; nothing in here knows of HTTP."""
