"""Routes of the server besides its own: each folder is one. Front end."""
