"""A command below `tenonry plugins` that lists the plugins of third-party distributions."""
