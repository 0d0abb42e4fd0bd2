"""What engines on servers share."""
