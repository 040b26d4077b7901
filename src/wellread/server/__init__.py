"""The server: linkers, knowledge bases and the attention view over HTTP, with a page for people.

A thin door: `reading` asks the rooms, `batching` reads many clients' texts together, `readers` does so in processes,
`app` has the routes, `guard` what every request passes, `page/` what a browser gets. Started by `wellread serve`.
"""
