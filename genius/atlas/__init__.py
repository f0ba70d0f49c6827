"""The atlas: what the codes of a collection mean, as names, examples, figures and measures."""
