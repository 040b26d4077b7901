"""HTTP server for linkers, vectors, the attention view and knowledge bases, with a web page; see `wellread serve`.

A request passes `middleware` (limits, log), a route of `text_routes` or `entity_routes` (checked by `schemas`), and the
`Engine`, whose `batching` groups texts of several clients. The `registry` links them, in processes of `workers`.
"""
