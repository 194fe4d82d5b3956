"""Models with versions, lineage and a status, in one SQLite file and blobs by their SHA-256."""
