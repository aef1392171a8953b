"""Files of text on disk: found, decompressed, read record by record; lines that hold no document."""
