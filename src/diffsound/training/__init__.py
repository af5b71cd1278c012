"""One short file per stage over one shared loop."""
