"""Audio files in and out, and the mel front end."""
