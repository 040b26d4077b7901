"""The linker where texts already flow: spaCy, Hugging Face pipelines, folders of files, Spark.

Nothing here links by itself; each file fits `wellread.linker.Linker` to somebody else's way of handing over texts.
"""
