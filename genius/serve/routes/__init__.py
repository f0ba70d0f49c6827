"""The addresses of the service: each module holds the routes of one thing."""
