"""The grammar backend `xgrammar`."""
