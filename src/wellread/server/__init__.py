"""The server: linkers, knowledge bases and the attention view over HTTP, with a page for people.

`linkers` and `encoders` run the models, `batching` links the texts of many clients together, `workers` does so in
processes, `app` has the routes, `middleware` what every request passes, `page/` what a browser gets. Started by
`wellread serve`.
"""
