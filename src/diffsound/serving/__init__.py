"""The HTTP server and the web page."""
