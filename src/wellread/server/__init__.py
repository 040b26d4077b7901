"""The server: linkers, knowledge bases and the attention view over HTTP, with a page for people.

A thin door: `reading` asks the rooms, `batching` lets one thread own the models and read many clients' texts together,
`app` has the routes, `guard` what every request passes, `page/` what a browser gets. Started by `wellread serve`.
"""
