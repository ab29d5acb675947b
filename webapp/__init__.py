"""The Django project: settings, REST API, pages, live sockets and accounts."""
