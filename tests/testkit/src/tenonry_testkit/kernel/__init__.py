"""What the kernel's own tests stand on: engines out of fakes, plugins that fail on request, roles of children."""
