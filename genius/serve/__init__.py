"""The service: indexes over HTTP, and a page to search them. Needs `pip install genius-search[serve]`."""
